"""PURE: results of tuning tensor fusion are kept for later trials, until they expire, are forgotten or crowded out.

A record belongs to no trial: the trial that found it may long be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangline.domain.fusion import FusionRecord, is_expired, is_fusion_key
from gangline.errors import invalid
from services.scheduler.state.records import Draft, Records, StateChange

# Each leader reads the whole state, so records that are only an optimisation are kept few and small.
MOST_RECORDS = 500
MOST_BUCKETS = 2000


def fusion_found(records: Records, new_record: FusionRecord, trial_id: str, now: float) -> StateChange:
    """Records a result and replaces the one of the same key. An unusable result is ignored: refusing the report would
    make the runner retry for ever.

    trial_id: the trial whose runner reports; it overrides the one in the record.
    """
    if not is_fusion_key(new_record.key) or len(new_record.bucket_bytes) > MOST_BUCKETS:
        return StateChange()
    draft = Draft(records)
    draft.put(replace(new_record, trial_id=trial_id, created_at=now))
    others = [record for record in records.all_of(FusionRecord) if record.key != new_record.key]
    for key in _surplus(others, now):
        draft.delete(FusionRecord, key)
    return draft.change


def fusion_forgotten(records: Records, key: str) -> StateChange:
    """Deletes the record of this key; the change is empty when there is none."""
    draft = Draft(records)
    if records.find(FusionRecord, key) is not None:
        draft.delete(FusionRecord, key)
    return draft.change


def check_fusion_key(key: str) -> None:
    """Raises GanglineError `fusion.key` for a malformed key."""
    if not is_fusion_key(key):
        raise invalid("fusion.key", f"{key!r} is no key of a fusion record; list them with: gangline fusion list")


def _surplus(records: Iterable[FusionRecord], now: float) -> list[str]:
    """Returns the keys of expired records, and of the oldest ones above the limit."""
    newest_first = sorted(records, key=lambda record: (-record.created_at, record.key))
    kept = [record for record in newest_first if not is_expired(record, now)][: MOST_RECORDS - 1]
    kept_keys = {record.key for record in kept}
    return [record.key for record in newest_first if record.key not in kept_keys]
