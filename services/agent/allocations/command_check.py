"""PURE: whether a command may be obeyed. Tests its epoch; for a start also that the spec is this agent's and its slots
free.

Refusals are sentences. The caller turns them into a log line or a START_FAILED report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gangline.domain.allocation import Allocation
from gangline.domain.id import describe_allocations
from services.agent.allocations.journal_record import JournalRecord, find_holders


def refuse_epoch(epoch: int, highest_epoch: int) -> str:
    """Returns why a leader of this epoch is not obeyed; empty if it is."""
    if epoch >= highest_epoch:
        return ""
    return f"its epoch {epoch} is older than {highest_epoch}, so another scheduler has led since"


def refuse_start(allocation: Allocation, node_rank: int, agent_id: str, own_slot_ids: Collection[str]) -> str:
    """Returns why this spec cannot run here; empty if it can."""
    if not 0 <= node_rank < len(allocation.members):
        return f"node rank {node_rank} is not one of its {len(allocation.members)} members"
    member = allocation.members[node_rank]
    if member.agent_id != agent_id:
        return f"node rank {node_rank} belongs to agent {member.agent_id}, not to {agent_id}"
    unknown = sorted(set(member.slot_ids) - set(own_slot_ids))
    if unknown:
        return f"agent {agent_id} has no slot {', '.join(unknown)}; it has {', '.join(sorted(own_slot_ids)) or 'none'}"
    return ""


def refuse_slots(records: Iterable[JournalRecord], allocation_id: str, slot_ids: Collection[str]) -> str:
    """Returns why the slots cannot become free for this allocation: a holder without an order to stop. The result is
    empty if all slots are free, or about to be."""
    record_by_id = {record.allocation_id: record for record in records}
    for holder in find_holders(record_by_id.values(), allocation_id, slot_ids):
        if record_by_id[holder].stop is None:
            shared = sorted(set(slot_ids).intersection(record_by_id[holder].slot_ids))
            return f"slot {', '.join(shared)} is in use by {describe_allocations([holder])}, which has no order to stop"
    return ""
