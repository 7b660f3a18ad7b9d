"""PURE: limits how often passwords may be tried that turn out to be wrong.

Each address has a budget of failures, and a smaller one for each user that it tries. Both come back with time, so no
user is locked out for good. Failures from one address take nothing from the others, so an attacker cannot lock a user
out who comes from elsewhere. The gateway keeps the budgets in memory, of at most MAX_ENTRIES addresses and users.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from dataclasses import dataclass

from gangline.errors import ErrorKind, GanglineError

MAX_ENTRIES = 4096
# Failures in a row, and the time in which one comes back.
FAILURES_OF_USER, SECONDS_OF_USER = 10, 10.0
FAILURES_OF_ADDRESS, SECONDS_OF_ADDRESS = 50, 2.0
Key = tuple[str, str]
# Each budget's key, its failures, and the seconds in which one of them comes back.
_Rules = tuple[tuple[Key, int, float], ...]


@dataclass(frozen=True, slots=True)
class _Budget:
    """Failures of one key at a time."""

    spent: float  # failures that count at the time `at`
    at: float


class LoginLimit:
    def __init__(self) -> None:
        self._budgets: OrderedDict[Key, _Budget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._budgets)

    def check(self, peer: str, name: str, now: float) -> None:
        """Refuses a login before its password is looked at. peer: the address of the caller. now: monotonic seconds.
        Raises GanglineError `auth.too_many_logins`."""
        self._check(_rules(peer, name), now)

    def check_address(self, peer: str, now: float) -> None:
        """Refuses a login before any of it is read, by its address. Raises GanglineError `auth.too_many_logins`."""
        self._check(_rules(peer, "")[:1], now)

    def fail_address(self, peer: str, now: float) -> None:
        """Counts a login of this address as failed whose message could not be read."""
        self._count(_rules(peer, "")[:1], now)

    def _check(self, rules: _Rules, now: float) -> None:
        waits = [(self._spent(key, seconds, now) + 1 - most) * seconds for key, most, seconds in rules]
        if max(waits) > 0:
            raise GanglineError(
                "auth.too_many_logins",
                f"too many wrong passwords came from your address; try again in {math.ceil(max(waits))} s, or use a "
                "token",
                ErrorKind.FORBIDDEN,
            )

    def begin(self, peer: str, name: str, now: float) -> None:
        """Counts a login as failed until `succeed` takes that back, so that logins at the same time count too."""
        self._count(_rules(peer, name), now)

    def _count(self, rules: _Rules, now: float) -> None:
        for key, most, seconds in rules:
            self._budgets[key] = _Budget(min(float(most), self._spent(key, seconds, now) + 1), now)
            self._budgets.move_to_end(key)
        while len(self._budgets) > MAX_ENTRIES:
            # The one whose last failure is the longest ago.
            self._budgets.popitem(last=False)

    def succeed(self, peer: str, name: str, now: float) -> None:
        """Takes back what `begin` has counted."""
        for key, _, seconds in _rules(peer, name):
            spent = self._spent(key, seconds, now) - 1
            if spent > 0:
                self._budgets[key] = _Budget(spent, now)
            else:
                self._budgets.pop(key, None)

    def _spent(self, key: Key, seconds: float, now: float) -> float:
        budget = self._budgets.get(key)
        return max(0.0, budget.spent - (now - budget.at) / seconds) if budget is not None else 0.0


def network_of(peer: str) -> str:
    """Returns what counts as one address: an IPv4 address, or the /64 of an IPv6 address, of which one host has all."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address.ipv4_mapped if address.version == 6 else address)


def _rules(peer: str, name: str) -> _Rules:
    """Returns the budgets of a login: of its address, and of the user at this address."""
    network = network_of(peer)
    return (
        ((network, ""), FAILURES_OF_ADDRESS, SECONDS_OF_ADDRESS),
        # Longer names are no names of users, and would take memory.
        ((network, f"user {name[:64]}"), FAILURES_OF_USER, SECONDS_OF_USER),
    )
