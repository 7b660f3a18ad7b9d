"""Interfaces that change: what counts as down, and that the kernel's message is heard."""

from __future__ import annotations

import asyncio
import time

from gangline.domain.resource import NetworkInterface
from services.agent.machine import host, link_events
from services.agent.machine_report import MOST_KNOWN, find_down, note

ETH = NetworkInterface("eth0", "10.0.0.1", 24, 1000)
FAST = NetworkInterface("fast0", "10.9.0.1", 24, 100_000)


def test_an_interface_that_is_gone_counts_as_down() -> None:
    assert find_down({"eth0": ETH}, [ETH], []) == ()
    assert find_down({"eth0": ETH, "fast0": FAST}, [ETH], []) == (NetworkInterface("fast0", "10.9.0.1", 24),)


def test_an_interface_that_is_down_with_its_address_is_named_once() -> None:
    moved = NetworkInterface("fast0", "10.9.0.7", 24)
    assert find_down({"eth0": ETH, "fast0": FAST}, [ETH], [moved]) == (moved,)


def test_interfaces_of_containers_are_never_missed() -> None:
    """They come and go with their containers, and no other machine reaches them."""
    bridge = NetworkInterface("docker0", "172.17.0.1", 16)
    own = NetworkInterface("br-1f2e", "172.18.0.1", 16)
    assert find_down({"eth0": ETH, "br-1f2e": own}, [ETH], [bridge]) == ()


def test_a_machine_with_ever_new_interfaces_is_remembered_in_part() -> None:
    had: dict[str, NetworkInterface] = {}
    for number in range(3 * MOST_KNOWN):
        note(had, [ETH, NetworkInterface(f"tun{number}", "10.8.0.2", 24)])
    assert (len(had), had["eth0"], list(had)[-1]) == (MOST_KNOWN, ETH, f"tun{3 * MOST_KNOWN - 1}")


def test_loopback_is_up_here() -> None:
    assert "lo" in {own.name for own in host.list_interfaces()}
    assert "lo" not in {own.name for own in host.list_down_interfaces()}


async def test_a_wait_without_an_event_ends_at_its_limit() -> None:
    events = link_events.LinkEvents()
    try:
        began_at = time.monotonic()
        await asyncio.wait_for(events.wait(0.05), 20)
        assert time.monotonic() - began_at >= 0.05
    finally:
        events.close()
