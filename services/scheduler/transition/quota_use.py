"""PURE: counts the slot-hours of allocations that end, by owner and by workspace.

They are counted for every owner and workspace, whether it has a quota or not, so a quota that is set in the middle of a
month counts the whole month. The count is part of the change that ends the allocation, so no change of the leader
counts an allocation twice or not at all.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment
from gangline.domain.quota import Quota, SlotUse, user_subject, with_ended, workspace_subject
from services.scheduler.state.quota import subjects_of
from services.scheduler.state.records import Draft


def count_use(draft: Draft, experiment: Experiment, allocation: Allocation, now: float) -> None:
    """Counts the slot-hours of an allocation that ends, in the change that ends it. They count for the workspace that
    holds the experiment now."""
    if not allocation.num_slots:
        return
    for subject in subjects_of(draft, experiment):
        use = draft.find(SlotUse, subject.id)
        draft.put(with_ended(use, subject, allocation.num_slots, allocation.created_at, now))


def rename_user(draft: Draft, name: str, new_name: str) -> None:
    """Gives a user's quota and use to the new name."""
    old, new = user_subject(name), user_subject(new_name)
    record_types: tuple[type[Quota | SlotUse], ...] = (Quota, SlotUse)
    for record_type in record_types:
        record = draft.find(record_type, old.id)
        draft.delete(record_type, new.id)
        if record is not None:
            draft.delete(record_type, old.id)
            draft.put(replace(record, subject=new))


def forget_workspace(draft: Draft, workspace_id: int) -> None:
    """Removes the quota and the use of a workspace that is deleted."""
    for record_type in (Quota, SlotUse):
        draft.delete(record_type, workspace_subject(workspace_id).id)
