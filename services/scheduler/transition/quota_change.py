"""PURE: sets and removes quotas of users and workspaces, and checks submits against them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from gangline.config.layer.lookup import find_named
from gangline.domain.experiment import Workspace
from gangline.domain.named_kind import WORKSPACE
from gangline.domain.quota import (
    USER_KIND,
    Quota,
    QuotaChange,
    QuotaSubject,
    check_quota_change,
    check_quota_kind,
    format_hours,
    never_allowed,
    user_subject,
    workspace_subject,
)
from gangline.domain.settled.record import Settled
from gangline.domain.user import User, no_user
from gangline.errors import conflict, invalid
from services.scheduler.state.quota import (
    breach_of,
    held_slots,
    limit_of,
    name_of,
    owner_subjects,
    quotas_of,
)
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.account.user_change import is_admin, not_admin
from services.scheduler.transition.project.rule import Caller, note_removal, remember, was_removed_by

_N = TypeVar("_N", int, float)
# The planner reads all of them in every cycle.
MAX_QUOTAS = 2_000


def subject_of(records: Records, kind: str, name: str) -> QuotaSubject:
    """Raises GanglineError `quota.kind`, `user.not_found`, `workspace.not_found`."""
    check_quota_kind(kind)
    if kind == USER_KIND:
        if records.find(User, name) is None:
            raise no_user(name)
        return user_subject(name)
    return workspace_subject(find_named(WORKSPACE, name, records.all_of(Workspace)).id)


def set_quota(
    records: Records, kind: str, name: str, change: QuotaChange, caller: Caller, *, now: float
) -> StateChange:
    """Sets limits, unless this request has set them. A quota without limits is removed.

    Raises GanglineError `auth.not_admin`, `quota.*`, `user.not_found`, `workspace.not_found`.
    """
    if not is_admin(records, caller):
        raise not_admin(caller, "set quotas")
    subject = subject_of(records, kind, name)
    check_quota_change(change)
    earlier = records.find(Quota, subject.id)
    if was_removed_by(records, caller) or (earlier is not None and caller.request_id in earlier.request_ids):
        return StateChange()
    if earlier is None and sum(1 for _ in records.all_of(Quota)) >= MAX_QUOTAS:
        raise conflict(
            "quota.too_many", f"there are {MAX_QUOTAS} quotas; remove one with: gangline quota remove KIND NAME"
        )
    before = earlier or Quota(subject)
    quota = replace(
        before,
        max_slots=before.max_slots if change.max_slots is None else _limit(change.max_slots),
        slot_hours=before.slot_hours if change.slot_hours is None else _limit(change.slot_hours),
    )
    draft = Draft(records)
    if quota.max_slots is None and quota.slot_hours is None:
        draft.delete(Quota, subject.id)
        if draft.change:
            note_removal(draft, caller)
    elif quota != before:
        request_ids = remember(before.request_ids, caller)
        draft.put(replace(quota, changed_at=now, changed_by=caller.user, request_ids=request_ids))
    return draft.change


def remove_quota(records: Records, kind: str, name: str, caller: Caller) -> StateChange:
    """Removes both limits. A quota that does not exist stays so.

    Raises GanglineError `auth.not_admin`, `quota.kind`, `user.not_found`, `workspace.not_found`.
    """
    if not is_admin(records, caller):
        raise not_admin(caller, "remove quotas")
    subject = subject_of(records, kind, name)
    draft = Draft(records)
    # A repeated request must not remove a quota that was set after it.
    if not was_removed_by(records, caller):
        draft.delete(Quota, subject.id)
        if draft.change:
            note_removal(draft, caller)
    return draft.change


def check_submit(records: Records, owner: str, project_id: int, settled: Settled, now: float) -> list[str]:
    """Returns warnings: what the request has to wait for now. Raises GanglineError `quota.never_fits` for a request
    that a quota can never let start."""
    slots = settled.resources.slots_per_trial
    key = "resources.slots_per_trial" if settled.task_kind is None else "resources.slots"
    quotas = quotas_of(records, owner_subjects(records, owner, project_id))
    if not slots or not quotas:
        return []
    for quota in quotas:
        if quota.max_slots is not None and slots > quota.max_slots:
            name = f"{quota.subject.kind} {name_of(records, quota.subject)}"
            raise invalid("quota.never_fits", never_allowed(slots, name, quota.max_slots, key))
    return [_wait_text(records, quota, slots, now) for quota in quotas if breach_of(records, [quota], slots, now)]


def _wait_text(records: Records, quota: Quota, slots: int, now: float) -> str:
    limit = limit_of(records, quota, now)
    if limit.slot_hours is not None and limit.is_spent:
        used, hours = format_hours(limit.used_hours), format_hours(limit.slot_hours)
        return f"{limit.name} has used {used} of {hours} slot-hours of this month; it waits until the next one begins"
    held = held_slots(records, quota.subject)
    return (
        f"{limit.name} has {held} of {quota.max_slots} slots, and this needs {slots} more; it waits until some are free"
    )


def _limit(value: _N) -> _N | None:
    return None if value < 0 else value
