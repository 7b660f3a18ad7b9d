"""PURE: which quotas count for an experiment, how much of them is used, and whether they let more slots start.

The planner obeys the quotas by its snapshot; placing checks them again with `breached_quota`, so that no plan made on
an older snapshot exceeds one. A third kind of subject is one more line in `subjects_in` and in `_held_keys`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gangline.domain.experiment import Experiment, Project, Workspace
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.quota import (
    USER_KIND,
    Quota,
    QuotaSubject,
    SlotUse,
    counted_month,
    ended_seconds,
    month_start,
    next_month_start,
    subjects_in,
)
from services.scheduler.placement.request.snapshot import Limit
from services.scheduler.state.records import Records

SECONDS_PER_HOUR = 3600.0


def subjects_of(records: Records, experiment: Experiment) -> tuple[QuotaSubject, ...]:
    """Returns the subjects for which the experiment's slots count."""
    return owner_subjects(records, experiment.owner, experiment.home_id)


def owner_subjects(records: Records, owner: str, project_id: int) -> tuple[QuotaSubject, ...]:
    """Returns the subjects of an owner's experiment in this project."""
    project = records.find(Project, project_id) or DEFAULT_PROJECT
    return subjects_in(owner, project.workspace_id)


def quotas_of(records: Records, subjects: Iterable[QuotaSubject]) -> list[Quota]:
    """Returns the quotas of those subjects that have one."""
    quotas = (records.find(Quota, subject.id) for subject in subjects)
    return [quota for quota in quotas if quota is not None]


def name_of(records: Records, subject: QuotaSubject) -> str:
    """Returns the name of the user or of the workspace."""
    if subject.kind == USER_KIND:
        return subject.key
    workspace_id = int(subject.key)
    if workspace_id == DEFAULT_WORKSPACE.id:
        return (records.find(Workspace, workspace_id) or DEFAULT_WORKSPACE).name
    workspace = records.find(Workspace, workspace_id)
    return workspace.name if workspace is not None else subject.key


def limit_of(records: Records, quota: Quota, now: float) -> Limit:
    """Returns the quota as the planner sees it. The slots that are held are left to the planner, which knows them."""
    name = f"{quota.subject.kind} {name_of(records, quota.subject)}"
    if quota.slot_hours is None:
        return Limit(quota.id, name, quota.max_slots)
    use = records.find(SlotUse, quota.id)
    month = counted_month(use, now)
    used_hours = _used_seconds(records, quota.subject, use, month, now) / SECONDS_PER_HOUR
    return Limit(quota.id, name, quota.max_slots, quota.slot_hours, used_hours, next_month_start(month))


def breached_quota(records: Records, experiment: Experiment, slots: int, now: float) -> Limit | None:
    """Returns a quota that does not let this experiment have so many more slots now; None if there is none."""
    if not slots:
        return None
    return breach_of(records, quotas_of(records, subjects_of(records, experiment)), slots, now)


def breach_of(records: Records, quotas: Iterable[Quota], slots: int, now: float) -> Limit | None:
    """Returns the first of these quotas that does not allow so many more slots now."""
    for quota in quotas:
        limit = limit_of(records, quota, now)
        if not limit.allows(held_slots(records, quota.subject), slots):
            return limit
    return None


def held_slots(records: Records, subject: QuotaSubject) -> int:
    """Returns the slots of the subject's live allocations, also of those that are being stopped."""
    return sum(records.held().slots_of(key) for key in _held_keys(records, subject))


def _used_seconds(records: Records, subject: QuotaSubject, use: SlotUse | None, month: str, now: float) -> float:
    """Returns the slot-seconds of the month: those of ended allocations, and those of live ones until now."""
    since = month_start(month)
    live = (records.held().slot_seconds_of(key, since, now) for key in _held_keys(records, subject))
    return ended_seconds(use, month) + sum(live)


def _held_keys(records: Records, subject: QuotaSubject) -> list[Hashable]:
    """Returns the owner, or the projects of the workspace that hold slots."""
    if subject.kind == USER_KIND:
        return [subject.key]
    workspace_id = int(subject.key)
    projects = ((key, records.find(Project, key) or DEFAULT_PROJECT) for key in records.held().project_ids())
    return [key for key, project in projects if project.workspace_id == workspace_id]
