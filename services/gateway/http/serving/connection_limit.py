"""PURE: which HTTP connections a gateway keeps, so that no caller without a token shuts the others out.

Owns the table of open connections. A connection counts for the address of its peer. It is *busy* while it serves a
request whose caller was admitted. When an address or the gateway is full, the connection with the least claim is
closed for a new one: first those that never carried an admitted request, then those that are idle. So connections that
only begin a request hold no place. RESERVED further places are for calls of monitoring (/healthz) alone. An address
that is full has a few of them, as monitoring may come from there too.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Protocol

# Each follower of logs holds one connection.
MAX_CONNECTIONS = 2048
MAX_OF_ADDRESS = 512
RESERVED = 64
RESERVED_OF_ADDRESS = 4


class HeldConnection(Protocol):
    """A connection, as the table sees it. is_busy: serves a request of an admitted caller. was_admitted: has served
    one."""

    @property
    def is_busy(self) -> bool: ...

    @property
    def was_admitted(self) -> bool: ...


@dataclass(slots=True)
class _Entry:
    connection: HeldConnection
    address: str
    number: int
    is_reserve: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionPlace:
    """The place of a new connection."""

    is_reserve: bool = False  # whether the connection may only ask for the gateway's health
    closed: HeldConnection | None = None  # connection that is closed for the new one; None if there is room


class Networks:
    """A set of addresses, given as addresses and networks. Raises ValueError for a text that is neither."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(text, strict=False) for text in texts]

    def __contains__(self, address: object) -> bool:
        try:
            parsed = ipaddress.ip_address(str(address).partition("%")[0])
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


def check_networks(texts: Iterable[str]) -> None:
    """Raises ValueError, with a text for the operator, unless each text is an address or a network."""
    for text in texts:
        try:
            Networks([text])
        except ValueError as error:
            raise ValueError(f"{text!r} is no address and no network; write as in 10.0.0.5 or 10.0.0.0/24") from error


class ConnectionTable:
    """Decides about new connections. proxies: addresses that stand for many callers, so they have no limit of their
    own."""

    def __init__(
        self,
        proxies: Container[str] = (),
        *,
        most: int = MAX_CONNECTIONS,
        most_of_address: int = MAX_OF_ADDRESS,
        reserved: int = RESERVED,
    ) -> None:
        self._proxies = proxies
        self._most, self._most_of_address, self._reserved = most, most_of_address, reserved
        self._entries: dict[int, _Entry] = {}
        self._num_by_address: Counter[str] = Counter()
        self._num_reserve = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, connection: HeldConnection, address: str) -> ConnectionPlace:
        """Returns the place of a new connection, which has it from now on."""
        is_full_address = address not in self._proxies and self._num_by_address[address] >= self._most_of_address
        is_reserve = False
        closed: _Entry | None = None
        if is_full_address or len(self._entries) - self._num_reserve >= self._most:
            closed = self._weakest(address if is_full_address else "")
            is_reserve = closed is None
        if is_reserve:
            closed = self._oldest_reserve(address if is_full_address else "")
        if closed is not None:
            self.leave(closed.connection)
        self._entries[id(connection)] = _Entry(connection, address, next(self._numbers), is_reserve)
        self._num_by_address[address] += not is_reserve
        self._num_reserve += is_reserve
        return ConnectionPlace(is_reserve=is_reserve, closed=closed.connection if closed is not None else None)

    def _oldest_reserve(self, address: str) -> _Entry | None:
        """Returns the entry to close for one more in the reserve; None while there is room. address: one that is full,
        which does not take the reserve from others; empty for all others."""
        reserve = [entry for entry in self._entries.values() if entry.is_reserve]
        own = [entry for entry in reserve if entry.address == address]
        if address and len(own) >= RESERVED_OF_ADDRESS:
            return min(own, key=lambda entry: entry.number)
        if len(reserve) >= self._reserved:
            return min(reserve, key=lambda entry: entry.number)
        return None

    def leave(self, connection: HeldConnection) -> None:
        """Frees the place. May be called again."""
        entry = self._entries.pop(id(connection), None)
        if entry is None:
            return
        self._num_reserve -= entry.is_reserve
        self._num_by_address[entry.address] -= not entry.is_reserve
        if not self._num_by_address[entry.address]:
            del self._num_by_address[entry.address]

    def _weakest(self, address: str) -> _Entry | None:
        """Returns the entry to close: of this address, or of the one with most entries, the oldest. None if all are
        busy."""
        entries = (entry for entry in self._entries.values() if not entry.is_reserve)
        return min(
            (entry for entry in entries if not entry.connection.is_busy and address in ("", entry.address)),
            key=lambda entry: (
                entry.connection.was_admitted,
                -self._num_by_address[entry.address],
                entry.number,
            ),
            default=None,
        )
