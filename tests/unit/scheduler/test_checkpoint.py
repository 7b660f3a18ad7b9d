"""Deletions of checkpoints: the allowed ones, the refused ones with their messages, and a gateway's confirmation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.errors import ErrorKind, GanglineError
from services.common.etcd.transaction import MAX_BYTES, num_bytes_of
from services.scheduler.state.codec import operations_of
from services.scheduler.state.records import Draft, StateChange, get
from services.scheduler.state.records import SchedulerState as Known
from services.scheduler.transition.checkpoint import (
    MAX_NAMED,
    confirm_checkpoints_deleted,
    delete_checkpoints,
    retire,
)
from services.scheduler.transition.report import checkpointed
from tests.support.scheduler import config_json

_EXPERIMENT = Experiment(1, "e", "ann", config_json(), "0")
_ENDED = Trial("1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, latest_checkpoint_id="c3", ended_at=1.0)
_ALL = tuple(Checkpoint(f"c{number}", "1.1", 1, number, "/s", created_at=float(number)) for number in (1, 2, 3))


def _known(*records: object) -> Known:
    return Known.of([_EXPERIMENT, *records])  # type: ignore[list-item]  # a test gives records


def _marked(change: StateChange) -> list[str]:
    return [one.id for one in change.all_of(Checkpoint) if one.state is CheckpointState.DELETING]


def test_user_deletes_several_at_once() -> None:
    change = delete_checkpoints(_known(_ENDED, *_ALL), ["c1", "c3", "c1"], "r1")
    assert _marked(change) == ["c1", "c3"]
    assert not any(change.all_of(Trial)), "not one byte of an ended trial changes"


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.STOPPING])
def test_what_a_trial_goes_on_from_is_refused_and_nothing_is_deleted(state: State) -> None:
    trial = replace(_ENDED, state=state, outcome=None)
    with pytest.raises(GanglineError) as caught:
        delete_checkpoints(_known(trial, *_ALL), ["c1", "c3"], "r1")
    assert (caught.value.code, caught.value.kind) == ("checkpoint.needed", ErrorKind.CONFLICT)
    assert caught.value.message == (
        f"trial 1.1 ({state}) goes on from checkpoint c3, so nothing was deleted; wait for its end, or end it with: "
        "gangline trial kill 1.1"
    )
    assert _marked(delete_checkpoints(_known(trial, *_ALL), ["c1"], "r1")) == ["c1"]


def test_what_a_live_allocation_started_from_is_refused_and_kept() -> None:
    """Its ranks may still read it, although a late report has brought a newer one."""
    trial = replace(_ENDED, state=State.RUNNING, outcome=None, attempts=2)
    allocation = Allocation("1.1.2", "1.1", 1, 2, 1, "default", (Member("a", 0),), checkpoint_id="c2")
    known = _known(trial, allocation, *_ALL)
    assert _marked(retire(known, "1.1")) == ["c1"]
    with pytest.raises(GanglineError, match="goes on from checkpoint c2"):
        delete_checkpoints(known, ["c2"], "r1")


def test_unknown_and_already_deleted_ones_are_refused() -> None:
    known = _known(_ENDED, *_ALL)
    known.apply(delete_checkpoints(known, ["c1"], "r1"), 1)
    assert not delete_checkpoints(known, ["c1"], "r1"), "a retry is no error"
    for ids, code, words in [
        (["c1"], "checkpoint.deleting", "checkpoint c1 is being deleted already"),
        (["nope"], "checkpoint.not_found", "there is no checkpoint nope; list them with: gangline checkpoint list"),
        (["c"] * (MAX_NAMED + 1), "checkpoint.too_many", "101 checkpoints cannot be deleted at once; name at most 100"),
    ]:
        with pytest.raises(GanglineError) as caught:
            delete_checkpoints(known, ids, "r2")
        assert (caught.value.code, caught.value.message) == (code, words)


def test_only_what_is_marked_goes_by_a_gateways_word() -> None:
    known = _known(_ENDED, *_ALL)
    known.apply(delete_checkpoints(known, ["c1"], "r1"), 1)
    change = confirm_checkpoints_deleted(known, ["c1", "c2", "nope"])
    assert change.deletes == ((Checkpoint, "c1"),)
    known.apply(change, 2)
    assert not confirm_checkpoints_deleted(known, ["c1"])
    assert [one.id for one in known.checkpoints_of("1.1")] == ["c2", "c3"]


def test_report_of_one_that_is_being_deleted_does_not_make_it_the_latest() -> None:
    """Two checkpoints have the same batch, and the later one counts; the report of the first arrives again."""
    first, second = _ALL[0], replace(_ALL[1], batches_completed=1)
    known = _known(replace(_ENDED, state=State.RUNNING, outcome=None, latest_checkpoint_id=""))
    for checkpoint in (first, second, first):
        known.apply(checkpointed(known, checkpoint), 1)
    assert get(known, Trial, "1.1").latest_checkpoint_id == "c2"
    assert get(known, Checkpoint, "c1").state is CheckpointState.DELETING
    known.apply(confirm_checkpoints_deleted(known, ["c1"]), 2)
    known.apply(checkpointed(known, first), 3)
    assert get(known, Trial, "1.1").latest_checkpoint_id == "c2"
    assert get(known, Checkpoint, "c1").state is CheckpointState.DELETING


def test_checkpoint_of_another_trial_is_not_taken_over() -> None:
    other = Trial("1.2", 1, 2, state=State.RUNNING)
    assert not checkpointed(_known(_ENDED, other, *_ALL), replace(_ALL[0], trial_id="1.2"))


def test_report_is_not_too_large_because_of_what_it_makes_superfluous() -> None:
    files = {f"tensors/{number:0100d}": 1 for number in range(2000)}
    metadata = json.dumps({"hparams": "x" * 100_000})
    large = [replace(one, file_bytes=files, metadata_json=metadata) for one in _ALL]
    known = _known(replace(_ENDED, state=State.RUNNING, outcome=None, latest_checkpoint_id=""), *large[:2])
    change = checkpointed(known, large[2])
    assert _marked(change) == ["c1", "c2"]
    assert num_bytes_of(operations_of(change)) <= MAX_BYTES


def test_draft_shows_checkpoints_as_they_will_be() -> None:
    draft = Draft(_known(_ENDED, *_ALL))
    draft.put(replace(_ALL[0], id="c0"))
    draft.put(replace(_ALL[1], state=CheckpointState.DELETING))
    draft.delete(Checkpoint, "c3")
    found = {one.id: one.state.value for one in draft.checkpoints_of("1.1")}
    assert found == {"c0": "COMPLETED", "c1": "COMPLETED", "c2": "DELETING"}
