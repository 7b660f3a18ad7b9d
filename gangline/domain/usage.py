"""PURE: the slots that allocations hold, and the report that adds them up.

An allocation uses its slots from its placement until its last member has ended, because they are free only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gangline.domain.allocation import Allocation, Timeline
from gangline.domain.state import UsageGroup

# Ended attempts that a trial's record keeps for the gateways. With all gateways away for more attempts of one trial
# than that, its oldest ones are missing in reports.
MAX_ATTEMPT_USAGES = 16
# Characters of a sentence about an attempt's end that the trial's record keeps.
MAX_ENDING = 200


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """The slots that one attempt has held, with the times of its start and its end."""

    attempt: int
    pool: str = ""
    cpu_slots: int = 0
    gpu_slots: int = 0
    started_at: float = 0.0  # by the leader's clock
    ended_at: float = 0.0  # by the leader's clock
    timeline: Timeline = field(default_factory=Timeline)  # empty for an attempt that an earlier version recorded
    ending: str = ""  # how it ended, in one line; empty for an orderly end


@dataclass(frozen=True, slots=True)
class AllocationUsage:
    """The same with its allocation, as the history keeps it."""

    allocation_id: str
    experiment_id: int
    owner: str
    usage: AttemptUsage


@dataclass(frozen=True, slots=True)
class UsageEntry:
    """The slots that one owner, pool, experiment, project or workspace has held."""

    key: str  # its name, or its id as text
    cpu_slot_seconds: float = 0.0  # seconds of all CPU slots together
    gpu_slot_seconds: float = 0.0  # seconds of all GPU slots together
    num_allocations: int = 0

    @property
    def slot_seconds(self) -> float:
        return self.cpu_slot_seconds + self.gpu_slot_seconds


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Slot-hours of a period."""

    since: float  # start of the period
    until: float  # end of the period
    by: UsageGroup  # kind of the keys
    entries: tuple[UsageEntry, ...] = ()  # the largest first


def usage_of(allocation: Allocation, ended_at: float, ending: str = "") -> AttemptUsage:
    """Returns the usage of an allocation that ends, or is cut, at this time. ending: why, in one line."""
    cpu_slots = sum(_is_cpu(slot_id) for member in allocation.members for slot_id in member.slot_ids)
    return AttemptUsage(
        attempt=allocation.attempt,
        pool=allocation.pool,
        cpu_slots=cpu_slots,
        gpu_slots=allocation.num_slots - cpu_slots,
        started_at=allocation.created_at,
        ended_at=ended_at,
        timeline=allocation.timeline,
        ending=ending[:MAX_ENDING],
    )


def entry_of(record: AllocationUsage, by: UsageGroup, since: float, until: float) -> UsageEntry | None:
    """Returns the part of this usage that is in the period; None when there is none."""
    usage = record.usage
    seconds = min(usage.ended_at, until) - max(usage.started_at, since)
    if seconds <= 0:
        return None
    return UsageEntry(key_of(record, by), usage.cpu_slots * seconds, usage.gpu_slots * seconds, 1)


def key_of(record: AllocationUsage, by: UsageGroup) -> str:
    """Returns the key of a group that the record itself names. A record of usage names no project."""
    match by:
        case UsageGroup.OWNER:
            return record.owner
        case UsageGroup.POOL:
            return record.usage.pool
        case _:
            return str(record.experiment_id)


def add_up(entries: Iterable[UsageEntry]) -> tuple[UsageEntry, ...]:
    """Joins entries with the same key. Returns the largest first."""
    total_by_key: dict[str, UsageEntry] = {}
    for entry in entries:
        total = total_by_key.get(entry.key, UsageEntry(entry.key))
        total_by_key[entry.key] = replace(
            total,
            cpu_slot_seconds=total.cpu_slot_seconds + entry.cpu_slot_seconds,
            gpu_slot_seconds=total.gpu_slot_seconds + entry.gpu_slot_seconds,
            num_allocations=total.num_allocations + entry.num_allocations,
        )
    return _largest_first(total_by_key)


def _largest_first(total_by_key: Mapping[str, UsageEntry]) -> tuple[UsageEntry, ...]:
    return tuple(sorted(total_by_key.values(), key=lambda entry: (-entry.slot_seconds, len(entry.key), entry.key)))


def _is_cpu(slot_id: str) -> bool:
    """Artificial slots are numbered, and GPU slots are named by their UUID; see Slot.id in types.proto."""
    return slot_id.rpartition("/")[2].isdigit()
