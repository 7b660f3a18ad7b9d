"""Which HTTP connections a gateway keeps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from services.gateway.http.serving.connection_limit import (
    RESERVED_OF_ADDRESS,
    ConnectionPlace,
    ConnectionTable,
    Networks,
    check_networks,
)


@dataclass(eq=False)
class Stub:
    is_busy: bool = False
    was_admitted: bool = False


def table(**limits: int) -> ConnectionTable:
    return ConnectionTable(Networks(["10.9.0.0/16"]), **{"most": 4, "most_of_address": 3, "reserved": 2, **limits})


def fill(connections: ConnectionTable, *entries: tuple[Stub, str]) -> None:
    for stub, address in entries:
        assert connections.enter(stub, address) == ConnectionPlace()


def test_an_address_that_is_full_loses_its_own_oldest_connection() -> None:
    connections, stubs = table(), [Stub() for _ in range(4)]
    fill(connections, *((stub, "10.0.0.1") for stub in stubs[:3]))
    assert connections.enter(stubs[3], "10.0.0.1") == ConnectionPlace(closed=stubs[0])
    assert connections.enter(Stub(), "10.0.0.2") == ConnectionPlace()
    assert len(connections) == 4


def test_an_address_whose_connections_all_work_has_places_for_monitoring_alone() -> None:
    connections = table(most=8, reserved=RESERVED_OF_ADDRESS + 1)
    fill(connections, *((Stub(is_busy=True), "10.0.0.1") for _ in range(3)))
    reserve = [Stub() for _ in range(RESERVED_OF_ADDRESS)]
    for stub in reserve:
        assert connections.enter(stub, "10.0.0.1") == ConnectionPlace(is_reserve=True)
    # It does not take the reserve from others, and they have places of the usual kind.
    assert connections.enter(Stub(), "10.0.0.1") == ConnectionPlace(is_reserve=True, closed=reserve[0])
    assert connections.enter(Stub(), "10.0.0.2") == ConnectionPlace()


def test_a_proxy_has_no_limit_of_its_own() -> None:
    connections = table()
    fill(connections, *((Stub(is_busy=True), "10.9.0.1") for _ in range(4)))


def test_a_full_gateway_closes_connections_without_an_admitted_request_first() -> None:
    connections = table()
    busy, idle, first, second = Stub(is_busy=True, was_admitted=True), Stub(was_admitted=True), Stub(), Stub()
    fill(connections, (busy, "10.0.0.1"), (idle, "10.0.0.2"), (first, "10.0.0.3"), (second, "10.0.0.3"))
    for closed in (first, second):
        new = Stub(is_busy=True)
        assert connections.enter(new, "10.0.0.4") == ConnectionPlace(closed=closed)
    assert connections.enter(Stub(is_busy=True), "10.0.0.5") == ConnectionPlace(closed=idle)


def test_monitoring_keeps_places_when_all_others_work() -> None:
    connections = table()
    fill(connections, *((Stub(is_busy=True), f"10.0.0.{number}") for number in range(4)))
    reserve = [Stub(), Stub()]
    assert [connections.enter(stub, "10.0.1.1") for stub in reserve] == [ConnectionPlace(is_reserve=True)] * 2
    last = Stub()
    assert connections.enter(last, "10.0.1.2") == ConnectionPlace(is_reserve=True, closed=reserve[0])
    connections.leave(last)
    connections.leave(last)
    assert connections.enter(Stub(), "10.0.1.3") == ConnectionPlace(is_reserve=True)


def test_a_place_that_is_left_is_free() -> None:
    connections, stub = table(), Stub(is_busy=True)
    fill(connections, *((Stub(is_busy=True), "10.0.0.1") for _ in range(2)), (stub, "10.0.0.1"))
    connections.leave(stub)
    fill(connections, (Stub(), "10.0.0.1"))


def test_networks_hold_addresses_and_nothing_else() -> None:
    networks = Networks(["10.0.0.5", "fd00::/8"])
    assert all(address in networks for address in ("10.0.0.5", "fd00::1", "fd00::1%eth0"))
    assert not any(address in networks for address in ("10.0.0.6", "unix", ""))
    with pytest.raises(ValueError, match=r"'proxy\.lab' is no address and no network"):
        check_networks(["10.0.0.5", "proxy.lab"])
