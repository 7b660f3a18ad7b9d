"""PURE: quotas of users and workspaces, the slot-hours that they have used in a month, and the check of a new quota.

A quota limits the slots at a time and the slot-hours in a calendar month (UTC), over all pools. quota.proto explains
the fields.
"""

from __future__ import annotations

import math
from calendar import timegm
from dataclasses import dataclass

from gangline.errors import GanglineError, invalid, not_found

USER_KIND = "user"
WORKSPACE_KIND = "workspace"
QUOTA_KINDS = (USER_KIND, WORKSPACE_KIND)
# Larger values are mistakes. Both fit into the messages and into the file of the simulator.
MAX_QUOTA_SLOTS = 10_000_000
MAX_QUOTA_HOURS = 1e10
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class QuotaSubject:
    """key: the name of a user; the id of a workspace, as text."""

    kind: str
    key: str

    @property
    def id(self) -> str:
        """Returns the key of its records in etcd, such as "user/ada"."""
        return f"{self.kind}/{self.key}"


NO_SUBJECT = QuotaSubject("", "")


@dataclass(frozen=True, slots=True)
class Quota:
    subject: QuotaSubject = NO_SUBJECT
    max_slots: int | None = None  # None for no such limit
    slot_hours: float | None = None  # None for no such limit
    changed_at: float = 0.0
    changed_by: str = ""
    request_ids: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.subject.id


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The slots that a subject's ended allocations held in one month."""

    subject: QuotaSubject = NO_SUBJECT
    month: str = ""
    slot_seconds: float = 0.0

    @property
    def id(self) -> str:
        return self.subject.id


@dataclass(frozen=True, slots=True)
class QuotaView:
    """A quota with its use."""

    subject: QuotaSubject = NO_SUBJECT
    name: str = ""  # of the user or of the workspace
    max_slots: int | None = None
    slot_hours: float | None = None
    held_slots: int = 0
    month: str = ""  # the present one, such as "2026-11"
    used_hours: float = 0.0
    changed_at: float = 0.0
    changed_by: str = ""

    @property
    def left_slots(self) -> int | None:
        """Returns the slots that may still start; None without a limit."""
        return None if self.max_slots is None else max(0, self.max_slots - self.held_slots)

    @property
    def left_hours(self) -> float | None:
        """Returns the slot-hours that are left in the month; None without a limit."""
        return None if self.slot_hours is None else max(0.0, self.slot_hours - self.used_hours)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """None leaves a value as it is; a negative value lifts the limit."""

    max_slots: int | None = None
    slot_hours: float | None = None


def user_subject(name: str) -> QuotaSubject:
    return QuotaSubject(USER_KIND, name)


def workspace_subject(workspace_id: int) -> QuotaSubject:
    return QuotaSubject(WORKSPACE_KIND, str(workspace_id))


def subjects_in(owner: str, workspace_id: int) -> tuple[QuotaSubject, ...]:
    """Returns the subjects for which the slots of an owner's experiment in a workspace count."""
    return (*((user_subject(owner),) if owner else ()), workspace_subject(workspace_id))


def month_of(at: float) -> str:
    """Returns the month of this time in UTC, such as "2026-11". Months compare as their texts do."""
    # Howard Hinnant's days_from_civil, backwards. Years begin with March here, so that a leap day is the last day.
    days = math.floor(at / _DAY_SECONDS) + 719_468
    era, day = divmod(days, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    month = (5 * (day - (365 * year + year // 4 - year // 100)) + 2) // 153
    year += 400 * era
    return f"{year + (month >= 10):04d}-{(month + 2) % 12 + 1:02d}"


def month_start(month: str) -> float:
    """Returns the Unix seconds at which the month begins."""
    year, number = month.split("-")
    return float(timegm((int(year), int(number), 1, 0, 0, 0)))


def next_month_start(month: str) -> float:
    """Returns the Unix seconds at which the month after this one begins."""
    # 32 days after the first of a month lie in the next month.
    return month_start(month_of(month_start(month) + 32 * _DAY_SECONDS))


def counted_month(use: SlotUse | None, now: float) -> str:
    """Returns the month that counts now. A leader whose clock is behind that of the leader before it may still be in
    the month before the recorded one; then the recorded one counts."""
    return max(month_of(now), use.month) if use is not None else month_of(now)


def ended_seconds(use: SlotUse | None, month: str) -> float:
    """Returns the slot-seconds of the allocations that have ended, as far as they lie in this month."""
    return use.slot_seconds if use is not None and use.month == month else 0.0


def with_ended(use: SlotUse | None, subject: QuotaSubject, slots: int, started_at: float, ended_at: float) -> SlotUse:
    """Returns the record with an allocation that has ended. Only its part in the counted month counts; the history has
    the months before."""
    month = counted_month(use, ended_at)
    seconds = max(0.0, ended_at - max(started_at, month_start(month)))
    return SlotUse(subject, month, ended_seconds(use, month) + slots * seconds)


def check_quota_kind(kind: str) -> None:
    """Raises GanglineError `quota.kind`."""
    if kind not in QUOTA_KINDS:
        raise invalid(
            "quota.kind", f"a quota is of a {' or a '.join(QUOTA_KINDS)}, not of a {kind!r}; name one of them"
        )


def check_quota_change(change: QuotaChange) -> None:
    """Raises GanglineError `quota.value` or `quota.nothing`."""
    if change == QuotaChange():
        raise invalid("quota.nothing", "the quota names no limit; give slots at a time, slot-hours in a month, or both")
    if change.max_slots is not None and change.max_slots > MAX_QUOTA_SLOTS:
        raise invalid("quota.value", f"{change.max_slots} slots are above the {MAX_QUOTA_SLOTS} that a quota may name")
    hours = change.slot_hours
    if hours is not None and (not math.isfinite(hours) or hours > MAX_QUOTA_HOURS):
        raise invalid(
            "quota.value", f"{hours:g} slot-hours are no number up to {MAX_QUOTA_HOURS:g}; give one, or lift it"
        )


def no_quota(kind: str, name: str) -> GanglineError:
    return not_found(
        "quota.not_found", f"{kind} {name!r} has no quota; set one with: gangline quota set {kind} {name} --slots N"
    )


def never_allowed(slots: int, owner_text: str, max_slots: int, key: str) -> str:
    """Returns the line for a request that a quota can never let start. owner_text: such as "user ada". key: the one of
    the configuration that names the slots."""
    text = f"would need {slots} slots, {owner_text} may have {max_slots}; ask an administrator"
    return f"{text}, or set {key} to at most {max_slots}" if max_slots else text


def format_hours(hours: float) -> str:
    """Returns slot-hours with at most three decimals, and none that are 0."""
    return f"{hours:.3f}".rstrip("0").rstrip(".")
