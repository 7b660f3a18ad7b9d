"""PURE: results of tuning tensor fusion are kept for later trials, until they expire, are forgotten or crowded out.

A record belongs to the user of the trial that found it, and to no trial, because that one may long be deleted. A
trial writes and forgets records of its own user alone; trials of all users read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangline.domain.experiment import Experiment
from gangline.domain.fusion import FusionRecord, is_expired, is_fusion_key, owned_key
from gangline.domain.id import parse_trial_id
from gangline.errors import invalid
from services.scheduler.state.records import Draft, Records, StateChange

# Each leader reads the whole state, so records that are only an optimisation are kept few and small.
MOST_RECORDS = 500
MOST_OF_OWNER = 100
MOST_BUCKETS = 2000


def fusion_found(records: Records, new_record: FusionRecord, trial_id: str, now: float) -> StateChange:
    """Records a result and replaces the user's own one of the same key. An unusable result is ignored: refusing the
    report would make the runner retry for ever.

    trial_id: the trial whose runner reports; it overrides the one in the record.
    """
    key = owned_key(new_record.key, _owner_of(records, trial_id))
    if not key or len(new_record.bucket_bytes) > MOST_BUCKETS:
        return StateChange()
    draft = Draft(records)
    draft.put(replace(new_record, key=key, trial_id=trial_id, created_at=now))
    others = [record for record in records.all_of(FusionRecord) if record.key != key]
    for surplus_key in _surplus(others, now, key.rpartition("-")[2]):
        draft.delete(FusionRecord, surplus_key)
    return draft.change


def fusion_doubted(records: Records, key: str, trial_id: str) -> StateChange:
    """Deletes the record of this key that a trial of the same user has found. Records of other users stay."""
    owner = _owner_of(records, trial_id)
    draft = Draft(records)
    if records.find(FusionRecord, owned_key(key, owner)) is not None:
        draft.delete(FusionRecord, owned_key(key, owner))
    # A record of an earlier version, whose key has no owner.
    earlier = records.find(FusionRecord, key)
    if earlier is not None and "-" in key and earlier.trial_id and _owner_of(records, earlier.trial_id) == owner:
        draft.delete(FusionRecord, key)
    return draft.change


def fusion_forgotten(records: Records, key: str) -> StateChange:
    """Deletes the record of this key for a user; the change is empty when there is none."""
    draft = Draft(records)
    if records.find(FusionRecord, key) is not None:
        draft.delete(FusionRecord, key)
    return draft.change


def check_fusion_key(key: str) -> None:
    """Raises GanglineError `fusion.key` for a malformed key."""
    if not is_fusion_key(key):
        raise invalid("fusion.key", f"{key!r} is no key of a fusion record; list them with: gangline fusion list")


def _owner_of(records: Records, trial_id: str) -> str:
    """Returns the user of a trial; empty for one of an experiment that is deleted."""
    experiment = records.find(Experiment, parse_trial_id(trial_id)[0])
    return experiment.owner if experiment is not None else ""


def _surplus(records: Iterable[FusionRecord], now: float, owner_part: str) -> list[str]:
    """Returns the keys of expired records, and of the oldest ones above the limits: of this owner, and of all."""
    newest_first = sorted(records, key=lambda record: (-record.created_at, record.key))
    kept = [record for record in newest_first if not is_expired(record, now)]
    own_keys = [record.key for record in kept if record.key.endswith(f"-{owner_part}")]
    crowded_out = set(own_keys[MOST_OF_OWNER - 1 :])
    kept_keys = {
        record.key for record in [record for record in kept if record.key not in crowded_out][: MOST_RECORDS - 1]
    }
    return [record.key for record in newest_first if record.key not in kept_keys]
