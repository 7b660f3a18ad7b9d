"""Interfaces that change: what counts as down, and that the kernel's message is heard."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import threading
import time

import pytest

from gangline.domain.resource import NetworkInterface
from services.agent.machine import host, link_events
from services.agent.machine_report import MOST_KNOWN, find_down, note

ETH = NetworkInterface("eth0", "10.0.0.1", 24, 1000)
# From linux/sched.h.
CLONE_NEWNET = 0x40000000
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


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip")
def test_a_wait_ends_when_the_kernel_says_that_an_interface_has_changed() -> None:
    heard: list[str] = []

    async def listen() -> None:
        events = link_events.LinkEvents()
        try:
            for state in ("up", "down"):
                await (await asyncio.create_subprocess_exec("ip", "link", "set", "lo", state)).wait()
                await asyncio.wait_for(events.wait(600), 20)
                heard.append(state)
        finally:
            events.close()

    def listen_apart() -> None:
        # Moves this thread alone, with the processes that it starts, into a network of its own.
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        asyncio.run(listen())

    thread = threading.Thread(target=listen_apart)
    thread.start()
    thread.join()
    assert heard == ["up", "down"]


class Unbindable(socket.socket):
    """A netlink socket in a sandbox that allows it to be made only."""

    def bind(self, _address: object) -> None:
        raise PermissionError(1, "Operation not permitted")


async def test_where_netlink_may_not_be_bound_a_wait_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Unbindable] = []

    def make(*arguments: int) -> Unbindable:
        made.append(Unbindable(*arguments))
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", make)
        events = link_events.LinkEvents()
    await asyncio.wait_for(events.wait(0.01), 20)
    events.close()
    assert [each.fileno() for each in made] == [-1], "it is closed"
