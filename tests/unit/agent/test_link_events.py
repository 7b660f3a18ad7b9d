"""Interfaces that change: what counts as down, and that the kernel's message is heard."""

from __future__ import annotations

import asyncio
import time

from gangline.domain.resource import NetworkInterface
from services.agent.machine import host, link_events
from services.agent.machine_report import find_down

ETH = NetworkInterface("eth0", "10.0.0.1", 24, 1000)
FAST = NetworkInterface("fast0", "10.9.0.1", 24, 100_000)


def test_an_interface_that_is_gone_counts_as_down() -> None:
    assert find_down({"eth0": ETH}, [ETH], []) == ()
    assert find_down({"eth0": ETH, "fast0": FAST}, [ETH], []) == (NetworkInterface("fast0", "10.9.0.1", 24),)


def test_an_interface_that_is_down_with_its_address_is_named_once() -> None:
    moved = NetworkInterface("fast0", "10.9.0.7", 24)
    assert find_down({"eth0": ETH, "fast0": FAST}, [ETH], [moved]) == (moved,)


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
