"""PURE: what tuning of tensor fusion found is kept for later trials, until it is too old, forgotten or crowded out.

It belongs to no trial: the one that found it may long be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangline.domain.fusion import FusionRecord, is_expired, is_fusion_key
from gangline.errors import invalid
from services.scheduler.records import Change, Draft, Records

# The state is read as a whole by each leader, so what nobody may miss is kept small.
MOST_RECORDS = 500
MOST_BUCKETS = 2000


def fusion_found(records: Records, found: FusionRecord, trial_id: str, now: float) -> Change:
    """Replaces the one of the same key. What cannot be kept is left out: a report must not be refused for ever.

    trial_id: whose runner says so, whatever the record says.
    """
    if not is_fusion_key(found.key) or len(found.bucket_bytes) > MOST_BUCKETS:
        return Change()
    draft = Draft(records)
    draft.put(replace(found, trial_id=trial_id, created_at=now))
    others = [record for record in records.all_of(FusionRecord) if record.key != found.key]
    for key in _surplus(others, now):
        draft.delete(FusionRecord, key)
    return draft.change


def fusion_forgotten(records: Records, key: str) -> Change:
    """Empty when there is none."""
    draft = Draft(records)
    if records.find(FusionRecord, key) is not None:
        draft.delete(FusionRecord, key)
    return draft.change


def check_fusion_key(key: str) -> None:
    """Raises GanglineError `fusion.key`."""
    if not is_fusion_key(key):
        raise invalid("fusion.key", f"{key!r} is no key of a fusion record; list them with: gangline fusion list")


def _surplus(records: Iterable[FusionRecord], now: float) -> list[str]:
    """Keys of those that nobody recalls any more, and of the oldest ones above the limit."""
    newest_first = sorted(records, key=lambda record: (-record.created_at, record.key))
    kept = [record for record in newest_first if not is_expired(record, now)][: MOST_RECORDS - 1]
    kept_keys = {record.key for record in kept}
    return [record.key for record in newest_first if record.key not in kept_keys]
