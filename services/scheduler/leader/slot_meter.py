"""Counts slot-seconds by pool and owner for Prometheus, while this scheduler leads.

Only the leader counts, and only the time of its own term. So the sum over all schedulers counts no second twice, and
a restart of a scheduler is an ordinary reset of a counter. The time without a leader is missing; `gangline usage` has
it. The term calls `on_committed` for each change and `count` once a second.
"""

from __future__ import annotations

from collections import Counter

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment
from services.scheduler.state.metrics import SLOT_SECONDS
from services.scheduler.state.records import SchedulerState, StateChange

# Owners with series of their own; all others share one, because each series costs memory of Prometheus for ever.
MAX_OWNERS = 200
OTHER_OWNER = "(other)"
# Most seconds that one step adds. A process that was paused may have lost its leadership meanwhile, and another leader
# has counted that time.
MAX_STEP_SECONDS = 5.0

Labels = tuple[str, str]


class SlotMeter:
    """state: of the term. now: by the monotonic clock, here and in the methods."""

    def __init__(self, state: SchedulerState, now: float) -> None:
        self._state = state
        self._counted_at = now
        self._held_by_allocation_id: dict[str, tuple[Labels, int]] = {}
        self._slots_by_labels: Counter[Labels] = Counter()
        self._owners: set[str] = set()
        for allocation in state.all_of(Allocation):
            self._add(allocation)

    def on_committed(self, change: StateChange, now: float) -> None:
        if not change.touches(Allocation):
            return
        self.count(now)
        for allocation in change.all_of(Allocation):
            self._remove(allocation.id)
            self._add(allocation)
        for record_type, record_id in change.deletes:
            if record_type is Allocation:
                self._remove(str(record_id))

    def count(self, now: float) -> None:
        """Adds the time since the last call."""
        seconds = min(max(now - self._counted_at, 0.0), MAX_STEP_SECONDS)
        self._counted_at = now
        for (pool, owner), slots in self._slots_by_labels.items():
            SLOT_SECONDS.labels(pool, owner).inc(slots * seconds)

    def _add(self, allocation: Allocation) -> None:
        labels = (allocation.pool, self._owner_label(allocation))
        self._held_by_allocation_id[allocation.id] = (labels, allocation.num_slots)
        self._slots_by_labels[labels] += allocation.num_slots

    def _remove(self, allocation_id: str) -> None:
        held = self._held_by_allocation_id.pop(allocation_id, None)
        if held is not None:
            labels, slots = held
            self._slots_by_labels[labels] -= slots
            if not self._slots_by_labels[labels]:
                del self._slots_by_labels[labels]

    def _owner_label(self, allocation: Allocation) -> str:
        experiment = self._state.find(Experiment, allocation.experiment_id)
        owner = experiment.owner if experiment is not None else ""
        if len(self._owners) < MAX_OWNERS:
            self._owners.add(owner)
        return owner if owner in self._owners else OTHER_OWNER
