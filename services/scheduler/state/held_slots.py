"""PURE: the live allocations by owner and by project, with their sums, for the quotas.

Owns an index beside the tables of SchedulerState, which feeds it. All sums are integers, so that adding and removing
millions of allocations leaves no error. A sum costs nothing for the allocations that began in the period asked for;
only those that began before it, which the first hours of a month have, are read one by one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Protocol

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment

_MICROSECONDS = 1_000_000

# Start in microseconds, allocation id, slots.
_Entry = tuple[int, str, int]


class Held(Protocol):
    """key: the name of an owner, or the id of a project."""

    def slots_of(self, key: Hashable) -> int: ...

    def slot_seconds_of(self, key: Hashable, since: float, now: float) -> float:
        """Returns the seconds for which live allocations have held their slots since a time, all slots together."""
        ...

    def project_ids(self) -> list[int]:
        """Returns the projects with live allocations."""
        ...


class _Group:
    """Holds the live allocations of one owner, or of one project."""

    def __init__(self) -> None:
        self.slots = 0
        self._weighted = 0  # the sum of slots times start
        self._entries: list[_Entry] = []  # the oldest first

    def add(self, entry: _Entry) -> None:
        insort(self._entries, entry)
        self._count(entry, 1)

    def remove(self, entry: _Entry) -> None:
        del self._entries[bisect_left(self._entries, entry)]
        self._count(entry, -1)

    def _count(self, entry: _Entry, sign: int) -> None:
        started, _, slots = entry
        self.slots += sign * slots
        self._weighted += sign * slots * started

    def slot_seconds(self, since: float, now: float) -> float:
        """Returns the seconds of all slots together since this time."""
        begin, end = _microseconds(since), _microseconds(now)
        total = self.slots * end - self._weighted
        for started, _, slots in self._entries:
            if started >= begin:
                break
            total -= slots * (begin - started)
        return max(0, total) / _MICROSECONDS

    def __bool__(self) -> bool:
        return bool(self._entries)


class HeldSlots:
    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._entries: defaultdict[int, dict[str, _Entry]] = defaultdict(dict)  # by experiment and allocation
        # By experiment with live allocations, the groups that have them. An experiment may become known after its
        # allocations, because a leader reads the records in the order of their keys.
        self._keys: dict[int, tuple[Hashable, ...]] = {}

    def put_allocation(self, allocation: Allocation, experiment: Experiment | None) -> None:
        self.remove_allocation(allocation)
        entry = (_microseconds(allocation.created_at), allocation.id, allocation.num_slots)
        if allocation.experiment_id not in self._keys:
            self._keys[allocation.experiment_id] = _keys_of(experiment)
        self._entries[allocation.experiment_id][allocation.id] = entry
        for key in self._keys[allocation.experiment_id]:
            self._groups.setdefault(key, _Group()).add(entry)

    def remove_allocation(self, allocation: Allocation) -> None:
        entries = self._entries.get(allocation.experiment_id, {})
        entry = entries.pop(allocation.id, None)
        if entry is None:
            return
        self._remove(allocation.experiment_id, entry)
        if not entries:
            del self._entries[allocation.experiment_id], self._keys[allocation.experiment_id]

    def put_experiment(self, experiment: Experiment) -> None:
        """Moves the live allocations of an experiment whose owner or project is new."""
        keys = _keys_of(experiment)
        if self._keys.get(experiment.id, keys) == keys:
            return
        entries = self._entries[experiment.id].values()
        for entry in entries:
            self._remove(experiment.id, entry)
        self._keys[experiment.id] = keys
        for key in keys:
            for entry in entries:
                self._groups.setdefault(key, _Group()).add(entry)

    def slots_of(self, key: Hashable) -> int:
        group = self._groups.get(key)
        return group.slots if group is not None else 0

    def slot_seconds_of(self, key: Hashable, since: float, now: float) -> float:
        group = self._groups.get(key)
        return group.slot_seconds(since, now) if group is not None else 0.0

    def project_ids(self) -> list[int]:
        return [key for key in self._groups if isinstance(key, int)]

    def _remove(self, experiment_id: int, entry: _Entry) -> None:
        for key in self._keys[experiment_id]:
            group = self._groups[key]
            group.remove(entry)
            if not group:
                del self._groups[key]


_Changed = Sequence[tuple[Allocation, Experiment | None]]


class ChangedSlots:
    """Shows the held slots as they will be once a change is committed. An experiment that moves in the change counts
    where it was, as if it moved after all else.

    begun, ended: the allocations that the change begins and ends, each with its experiment.
    """

    def __init__(self, base: Held, begun: _Changed, ended: _Changed) -> None:
        self._base = base
        self._begun = [(allocation, _keys_of(experiment)) for allocation, experiment in begun]
        self._ended = [(allocation, _keys_of(experiment)) for allocation, experiment in ended]

    def slots_of(self, key: Hashable) -> int:
        begun = sum(allocation.num_slots for allocation, keys in self._begun if key in keys)
        return self._base.slots_of(key) + begun - sum(each.num_slots for each, keys in self._ended if key in keys)

    def slot_seconds_of(self, key: Hashable, since: float, now: float) -> float:
        seconds = self._base.slot_seconds_of(key, since, now)
        for changed, sign in ((self._begun, 1), (self._ended, -1)):
            for allocation, keys in changed:
                if key in keys:
                    seconds += sign * allocation.num_slots * max(0.0, now - max(since, allocation.created_at))
        return seconds

    def project_ids(self) -> list[int]:
        new = {key for _, keys in self._begun for key in keys if isinstance(key, int)}
        return sorted(new.union(self._base.project_ids()))


def _keys_of(experiment: Experiment | None) -> tuple[Hashable, ...]:
    """Returns the keys under which the experiment's allocations count: its owner, and its project."""
    return () if experiment is None else (experiment.owner, experiment.home_id)


def _microseconds(at: float) -> int:
    return round(at * _MICROSECONDS)
