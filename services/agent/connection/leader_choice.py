"""PURE: which scheduler the agent tries next, and after which delay.

A route has the configured addresses, those of the schedulers that are alive now, and the leader's if a standby named
it. The link asks it after each attempt; randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

# Back-off of the first round over all addresses; it doubles with each further round.
FIRST_DELAY_SECONDS = 0.1
# Cap of the back-off, so that a new leader is found soon.
LONGEST_DELAY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LeaderChoice:
    """The addresses and the position of the search for the leader."""

    addresses: tuple[str, ...]  # configured addresses
    cursor: int = 0
    failures: int = 0  # attempts since the last stream that was welcomed
    leader: str = ""  # address that a standby named; empty if none did
    learned: tuple[str, ...] = ()  # addresses of all schedulers that were alive when a scheduler last named them
    welcomed_by: str = ""  # address of the newest leader that welcomed the agent

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.addresses, *self.learned)))

    @property
    def address(self) -> str:
        return self.leader or self.known[self.cursor % len(self.known)]

    @property
    def others(self) -> tuple[str, ...]:
        """The schedulers to ask for a newer leader: those that do not lead, or the only one if there is no other."""
        return tuple(address for address in self.known if address != self.welcomed_by) or self.known


def after_failure(route: LeaderChoice) -> LeaderChoice:
    """Returns the route after an attempt at which no leader answered. A named leader that failed is dropped before the
    next configured address is tried."""
    moved = route.cursor if route.leader else route.cursor + 1
    return replace(route, cursor=moved % len(route.known), failures=route.failures + 1, leader="")


def after_naming(route: LeaderChoice, leader: str) -> LeaderChoice:
    """Returns the route after a standby named the leader. It counts as a failure, so two standbys that name each other
    are not asked in a tight loop."""
    if leader == route.address:
        return after_failure(route)
    return replace(after_failure(route), leader=leader)


def after_new_leader(route: LeaderChoice, leader: str) -> LeaderChoice:
    """Returns the route after a scheduler named a leader that is newer than all that the agent knew."""
    return replace(route, leader=leader, failures=0)


def after_learning(route: LeaderChoice, schedulers: Sequence[str]) -> LeaderChoice:
    """Returns the route with the new list of schedulers. The cursor stays on its address if the list still has it."""
    learned = replace(route, learned=tuple(schedulers))
    present = route.known[route.cursor % len(route.known)]
    return replace(learned, cursor=learned.known.index(present) if present in learned.known else 0)


def after_welcome(route: LeaderChoice) -> LeaderChoice:
    return replace(route, failures=0, welcomed_by=route.address)


def plan_delay(route: LeaderChoice, roll: float) -> float:
    """Returns the seconds to wait before the next attempt; roll: uniform in [0, 1).

    The first attempt after a lost stream and the first round over all addresses are fast, because a new leader is
    elected within a second. Then the delay doubles each round up to its cap. A random factor between 0.5 and 1 keeps a
    cluster's agents from returning at the same moment.
    """
    if route.failures == 0:
        return 0.0
    rounds = route.failures // (len(route.known) + 1)
    longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(rounds, 16))
    return longest * (0.5 + 0.5 * roll)
