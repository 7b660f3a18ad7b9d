"""PURE: when a GPU is taken out of use, and when it is used again.

There is one GpuHealth for each device. An XID or an unusual reading only raises a suspicion. A second finding confirms
it: a check that agrees, or another XID outside of the same burst. It makes a problem of the suspicion, which takes the
slot out of use. Good checks in a row end the problem. XIDs that an application causes, and errors that the hardware
contained, never count.
monitor.py calls this with NVML's findings; `now` is in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.agent.devices.xid import CONTAINED_ERROR, REPLACE, RESET, Xid, XidKind, classify

# One incident raises several XIDs within moments, so only a later one counts as a second finding.
BURST_SECONDS = 10.0

REMAP_FAILED = f"a row of its memory could not be remapped; {REPLACE}"
REMAP_PENDING = f"rows of its memory wait to be remapped; {RESET}"


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that an operator sets."""

    num_confirmations: int = 2  # number of findings that make a problem, at least 2
    num_good_checks: int = 3  # good checks in a row until a device is used again
    window_seconds: float = 3600.0  # time for which a suspicion counts


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The result of one check of a device."""

    # a query that failed, or the driver's recommendation, as a sentence with a remedy; empty if there is none
    problem: str = ""
    # uncorrected memory errors since the driver was loaded or the GPU was reset; None if not counted
    num_uncorrected: int | None = None
    is_remap_pending: bool = False  # no fault by itself, because the bad rows are not handed out
    has_remap_failed: bool = False  # whether a remap has ever failed


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A finding that is not confirmed yet."""

    at: float
    what: str
    remedy: str
    xid: Xid | None = None  # None for memory errors that a check counted

    @property
    def is_memory(self) -> bool:
        return self.xid is None or self.xid.is_memory

    @property
    def is_explained_by_contained(self) -> bool:
        return self.xid is None or self.xid.is_raised_by_contained


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The state of one device."""

    problem: str = ""  # why the device is out of use, and the remedy; empty while it is in use
    suspicions: tuple[Suspicion, ...] = ()
    bad_checks: int = 0  # bad checks in a row up to the last check
    good_checks: int = 0  # good checks in a row up to the last check, counted only while there is a problem
    num_uncorrected: int | None = None  # uncorrected memory errors at the last check that could read them; None before
    # set if the memory is at fault: only a smaller number of errors shows that the GPU was reset
    reset_below: int | None = None
    checked_at: float | None = None  # time of the last check; None before it
    contained_at: float | None = None  # time of the last contained error; None if there was none


def after_xid(health: GpuHealth, code: int, now: float, policy: Policy) -> GpuHealth:
    """Returns the health after the driver reported this XID for the device."""
    xid = classify(code)
    if xid.kind is XidKind.APPLICATION:
        return health
    if xid.kind is XidKind.CONTAINED:
        return _after_contained(health, now) if code == CONTAINED_ERROR else health
    # This XID belongs to a contained error, which has been handled.
    if xid.is_raised_by_contained and _is_near(health.contained_at, now):
        return health
    if health.problem:
        return replace(health, good_checks=0) if xid.kind is XidKind.HARDWARE else health
    suspicions = _recent(health.suspicions, now, policy)
    # The same XID twice within one burst is one finding.
    if not any(each.xid == xid and _is_near(each.at, now) for each in suspicions):
        suspicions = (*suspicions, Suspicion(now, str(xid), xid.remedy, xid))
    return _judge(replace(health, suspicions=suspicions), "", policy)


def after_reading(health: GpuHealth, reading: GpuReading, now: float, policy: Policy) -> GpuHealth:
    """Returns the health after a check of the device with this reading."""
    # The suspicions that made a problem are kept as long as it lasts.
    suspicions = health.suspicions if health.problem else _recent(health.suspicions, now, policy)
    fault = _find_fault(reading, suspicions)
    num_more = _count_unexplained(health, reading, now)
    checked = replace(
        health,
        suspicions=suspicions,
        bad_checks=health.bad_checks + 1 if fault else 0,
        num_uncorrected=health.num_uncorrected if reading.num_uncorrected is None else reading.num_uncorrected,
        checked_at=now,
    )
    if health.problem:
        is_good = not fault and not num_more and not _is_reset_missing(checked)
        return _after_good(checked, policy) if is_good else _after_bad(checked, fault)
    if num_more and not fault:
        # A fault in the same reading would be the same finding, so it is not counted twice.
        what = f"{num_more} uncorrected memory error{'s' if num_more > 1 else ''}"
        checked = replace(checked, suspicions=(*suspicions, Suspicion(now, what, RESET)))
    return _judge(checked, fault, policy)


def _after_good(health: GpuHealth, policy: Policy) -> GpuHealth:
    if health.good_checks + 1 < policy.num_good_checks:
        return replace(health, good_checks=health.good_checks + 1)
    return GpuHealth(num_uncorrected=health.num_uncorrected, checked_at=health.checked_at)


def _after_bad(health: GpuHealth, fault: str) -> GpuHealth:
    problem = _word(health.suspicions, fault) if fault else health.problem
    return replace(health, good_checks=0, problem=problem)


def _after_contained(health: GpuHealth, now: float) -> GpuHealth:
    """Drops the suspicions that came with a contained error: they add nothing, and the GPU needs no reset before it is
    used again."""
    kept = tuple(each for each in health.suspicions if not (each.is_explained_by_contained and _is_near(each.at, now)))
    reset_below = None if len(kept) < len(health.suspicions) else health.reset_below
    return replace(health, suspicions=kept, contained_at=now, reset_below=reset_below)


def _judge(health: GpuHealth, fault: str, policy: Policy) -> GpuHealth:
    if _count_findings(health) < policy.num_confirmations:
        return health
    is_memory = any(each.is_memory for each in health.suspicions)
    return replace(
        health,
        problem=_word(health.suspicions, fault),
        good_checks=0,
        reset_below=(health.num_uncorrected or None) if is_memory else None,
    )


def _count_findings(health: GpuHealth) -> int:
    by_check = health.bad_checks + sum(each.xid is None for each in health.suspicions)
    # An unknown XID only confirms the finding of a check, and counts for nothing else.
    by_unknown = min(by_check, sum(each.xid is not None and not _is_hardware(each) for each in health.suspicions), 1)
    return by_check + by_unknown + _count_bursts(each.at for each in health.suspicions if _is_hardware(each))


def _count_bursts(moments: Iterable[float]) -> int:
    """Returns the number of bursts. moments: in rising order."""
    num_bursts, began_at = 0, float("-inf")
    for moment in moments:
        if moment - began_at >= BURST_SECONDS:
            num_bursts, began_at = num_bursts + 1, moment
    return num_bursts


def _find_fault(reading: GpuReading, suspicions: Iterable[Suspicion]) -> str:
    """Returns why this reading is bad by itself, or together with the suspicions; empty if it is not."""
    if reading.problem:
        return reading.problem
    if reading.has_remap_failed:
        return REMAP_FAILED
    is_memory_suspected = any(each.xid is not None and each.is_memory for each in suspicions)
    return REMAP_PENDING if reading.is_remap_pending and is_memory_suspected else ""


def _count_unexplained(health: GpuHealth, reading: GpuReading, now: float) -> int:
    """Returns the number of uncorrected memory errors since the last check; 0 if a contained error explains them."""
    if reading.num_uncorrected is None or health.num_uncorrected is None:
        return 0
    is_since = health.contained_at is not None and health.contained_at >= (health.checked_at or 0.0)
    is_explained = is_since or _is_near(health.contained_at, now)
    return 0 if is_explained else max(0, reading.num_uncorrected - health.num_uncorrected)


def _is_reset_missing(health: GpuHealth) -> bool:
    return health.reset_below is not None and (health.num_uncorrected or 0) >= health.reset_below


def _word(suspicions: Iterable[Suspicion], fault: str) -> str:
    """Returns the findings in order and the remedy: that of the fault, or else that of the last suspicion."""
    seen = list(suspicions)
    names = list(dict.fromkeys(each.what for each in seen))
    parts = [f"{name}, {count} times" if (count := _count(seen, name)) > 1 else name for name in names]
    return ", then ".join([*parts, fault]) if fault else f"{', then '.join(parts)}; {seen[-1].remedy}"


def _count(suspicions: Iterable[Suspicion], what: str) -> int:
    return sum(each.what == what for each in suspicions)


def _recent(suspicions: Iterable[Suspicion], now: float, policy: Policy) -> tuple[Suspicion, ...]:
    return tuple(each for each in suspicions if now - each.at <= policy.window_seconds)


def _is_hardware(suspicion: Suspicion) -> bool:
    return suspicion.xid is not None and suspicion.xid.kind is XidKind.HARDWARE


def _is_near(moment: float | None, now: float) -> bool:
    return moment is not None and abs(now - moment) < BURST_SECONDS
