"""PURE: decides whether a submit repeats an earlier one, and what follows from that.

Owns the entries that the CLI remembers of its last submits, and the rules for their age. `submit_memory.py` keeps them
on disk and reads the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# How long a submit whose outcome is not known is taken over. After a day the user has looked at its outcome.
OPEN_SECONDS = 24 * 3600.0
# How long the repetition of a submit that has created an experiment is likely a mistake.
CREATED_SECONDS = 60.0
# Bounds the file of the memory; the newest entries stay.
MAX_ENTRIES = 50


@dataclass(frozen=True, slots=True)
class MachineTime:
    """A time on the clocks of this machine."""

    wall: float  # seconds since 1970
    boot: float  # seconds since this machine started, which no step of the clock moves
    boot_id: str


@dataclass(frozen=True, slots=True)
class SubmitEntry:
    """One submit."""

    digest: str  # digest of its content and its user
    cluster: str  # id of the cluster to which it was sent
    request_id: str
    wall: float
    boot: float
    boot_id: str
    experiment_id: int = 0  # 0 while the outcome is not known
    num_commands: int = 1  # number of commands that have sent this request id


def age_of(entry: SubmitEntry, clock: MachineTime) -> float:
    """Returns the age in seconds. Within one boot of a machine it is exact. Else it uses the wall clock, which may have
    been set back since."""
    if entry.boot_id == clock.boot_id:
        return max(0.0, clock.boot - entry.boot)
    return max(0.0, clock.wall - entry.wall)


def living(entries: Iterable[SubmitEntry], clock: MachineTime) -> list[SubmitEntry]:
    """Returns the entries that are not too old, oldest first. An entry from the future counts from now on, so that it
    will expire."""
    clamped = [replace(entry, wall=min(entry.wall, clock.wall)) for entry in entries]
    limits = [CREATED_SECONDS if entry.experiment_id else OPEN_SECONDS for entry in clamped]
    kept = [entry for entry, limit in zip(clamped, limits, strict=True) if age_of(entry, clock) <= limit]
    return kept[-MAX_ENTRIES:]


def find_earlier(entries: Iterable[SubmitEntry], digest: str, cluster: str) -> SubmitEntry | None:
    """Returns the newest submit of the same content to the same cluster. cluster: empty for any of them."""
    same = [entry for entry in entries if entry.digest == digest and cluster in ("", entry.cluster)]
    return same[-1] if same else None


def begun(entries: Iterable[SubmitEntry], entry: SubmitEntry) -> list[SubmitEntry]:
    """Returns the entries with this one as the newest, in place of its own earlier state."""
    return [*(earlier for earlier in entries if earlier.request_id != entry.request_id), entry]


def created(
    entries: Iterable[SubmitEntry], request_id: str, experiment_id: int, clock: MachineTime
) -> list[SubmitEntry]:
    """Returns the entries with the experiment that this request has made, now or when it was sent first."""
    wall, boot, boot_id = clock.wall, clock.boot, clock.boot_id
    return [
        replace(entry, experiment_id=experiment_id, wall=wall, boot=boot, boot_id=boot_id)
        if entry.request_id == request_id
        else entry
        for entry in entries
    ]


def failed(entries: Iterable[SubmitEntry], request_id: str) -> list[SubmitEntry]:
    """Returns the entries without this request, whose command has certainly created nothing. The entry stays where
    another command has sent the request as well, because that one may have created an experiment."""
    return [entry for entry in entries if entry.request_id != request_id or entry.num_commands > 1]
