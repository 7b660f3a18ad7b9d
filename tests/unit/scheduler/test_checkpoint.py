"""Deletions of checkpoints: the allowed ones, the refused ones with their messages, and a gateway's confirmation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.id import MAX_NAMED_CHECKPOINTS
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.errors import ErrorKind, GanglineError
from services.common.etcd.transaction import MAX_BYTES, num_bytes_of
from services.scheduler.state.codec import operations_of
from services.scheduler.state.records import Draft, StateChange, get
from services.scheduler.state.records import SchedulerState as Known
from services.scheduler.transition.checkpoint import (
    confirm_checkpoints_deleted,
    delete_checkpoints,
    retire,
)
from services.scheduler.transition.report import checkpointed, find_taken
from tests.support.scheduler import config_json

_EXPERIMENT = Experiment(1, "e", "ann", config_json(), "0")
_ENDED = Trial("1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, latest_checkpoint_id="c3", ended_at=1.0)
_ALL = tuple(Checkpoint(f"c{number}", "1.1", 1, number, "/s", created_at=float(number)) for number in (1, 2, 3))


def _state_with(*records: object) -> Known:
    return Known.of([_EXPERIMENT, *records])  # type: ignore[list-item]  # a test gives records


def _marked(change: StateChange) -> list[str]:
    return [checkpoint.id for checkpoint in change.all_of(Checkpoint) if checkpoint.state is CheckpointState.DELETING]


def test_user_deletes_several_at_once() -> None:
    change = delete_checkpoints(_state_with(_ENDED, *_ALL), ["c1", "c3", "c1"], "r1")
    assert _marked(change) == ["c1", "c3"]
    assert not any(change.all_of(Trial)), "not one byte of an ended trial changes"


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.STOPPING])
def test_what_a_trial_goes_on_from_is_refused_and_nothing_is_deleted(state: State) -> None:
    trial = replace(_ENDED, state=state, outcome=None)
    with pytest.raises(GanglineError) as caught:
        delete_checkpoints(_state_with(trial, *_ALL), ["c1", "c3"], "r1")
    assert (caught.value.code, caught.value.kind) == ("checkpoint.needed", ErrorKind.CONFLICT)
    assert caught.value.message == (
        f"trial 1.1 ({state}) goes on from checkpoint c3, so nothing was deleted; wait for its end, or end it with: "
        "gangline trial kill 1.1"
    )
    assert _marked(delete_checkpoints(_state_with(trial, *_ALL), ["c1"], "r1")) == ["c1"]


def test_what_a_live_allocation_started_from_is_refused_and_kept() -> None:
    """Its ranks may still read it, although a late report has brought a newer one."""
    trial = replace(_ENDED, state=State.RUNNING, outcome=None, attempts=2)
    allocation = Allocation("1.1.2", "1.1", 1, 2, 1, "default", (Member("a", 0),), checkpoint_id="c2")
    state = _state_with(trial, allocation, *_ALL)
    assert _marked(retire(state, "1.1")) == ["c1"]
    with pytest.raises(GanglineError, match="goes on from checkpoint c2"):
        delete_checkpoints(state, ["c2"], "r1")


def test_unknown_and_already_deleted_ones_are_refused() -> None:
    state = _state_with(_ENDED, *_ALL)
    state.apply(delete_checkpoints(state, ["c1"], "r1"), 1)
    assert not delete_checkpoints(state, ["c1"], "r1"), "a retry is no error"
    for ids, code, words in [
        (["c1"], "checkpoint.deleting", "checkpoint c1 is being deleted already"),
        (["nope"], "checkpoint.not_found", "there is no checkpoint nope; list them with: gangline checkpoint list"),
        (
            ["c"] * (MAX_NAMED_CHECKPOINTS + 1),
            "checkpoint.too_many",
            "101 checkpoints cannot be deleted at once; name at most 100",
        ),
    ]:
        with pytest.raises(GanglineError) as caught:
            delete_checkpoints(state, ids, "r2")
        assert (caught.value.code, caught.value.message) == (code, words)


def test_only_what_is_marked_goes_by_a_gateways_word() -> None:
    state = _state_with(_ENDED, *_ALL)
    state.apply(delete_checkpoints(state, ["c1"], "r1"), 1)
    change = confirm_checkpoints_deleted(state, ["c1", "c2", "nope"])
    assert change.deletes == ((Checkpoint, "c1"),)
    state.apply(change, 2)
    assert not confirm_checkpoints_deleted(state, ["c1"])
    assert [checkpoint.id for checkpoint in state.checkpoints_of("1.1")] == ["c2", "c3"]


def test_report_of_one_that_is_being_deleted_does_not_make_it_the_latest() -> None:
    """Two checkpoints have the same batch, and the later one counts; the report of the first arrives again."""
    first, second = _ALL[0], replace(_ALL[1], batches_completed=1)
    state = _state_with(replace(_ENDED, state=State.RUNNING, outcome=None, latest_checkpoint_id=""))
    for checkpoint in (first, second, first):
        state.apply(checkpointed(state, checkpoint), 1)
    assert get(state, Trial, "1.1").latest_checkpoint_id == "c2"
    assert get(state, Checkpoint, "c1").state is CheckpointState.DELETING
    state.apply(confirm_checkpoints_deleted(state, ["c1"]), 2)
    state.apply(checkpointed(state, first), 3)
    assert get(state, Trial, "1.1").latest_checkpoint_id == "c2"
    assert get(state, Checkpoint, "c1").state is CheckpointState.DELETING


def test_checkpoint_of_another_trial_is_not_taken_over() -> None:
    """The trial that has not got its own checkpoint has a warning of it."""
    other, theirs = Trial("1.2", 1, 2, state=State.RUNNING), replace(_ALL[0], trial_id="1.2")
    state = _state_with(_ENDED, other, *_ALL)
    change = checkpointed(state, theirs)
    (warned,) = (record for record in change.puts if isinstance(record, Trial))
    assert len(change.puts) == 1
    assert warned == replace(other, warning=find_taken(state, theirs))
    assert "checkpoint c1 after batch 1 is not recorded, because trial 1.1 has reported the same id" in warned.warning
    assert not checkpointed(_state_with(_ENDED, replace(other, state=State.TERMINAL), *_ALL), theirs)
    imported = replace(_ALL[0], trial_id="")
    assert "an import has the same id" in find_taken(_state_with(imported), theirs)


def test_report_is_not_too_large_because_of_what_it_makes_superfluous() -> None:
    files = {f"tensors/{number:0100d}": 1 for number in range(2000)}
    metadata = json.dumps({"hparams": "x" * 100_000})
    large = [replace(checkpoint, file_bytes=files, metadata_json=metadata) for checkpoint in _ALL]
    state = _state_with(replace(_ENDED, state=State.RUNNING, outcome=None, latest_checkpoint_id=""), *large[:2])
    change = checkpointed(state, large[2])
    assert _marked(change) == ["c1", "c2"]
    assert num_bytes_of(operations_of(change)) <= MAX_BYTES


def test_draft_shows_checkpoints_as_they_will_be() -> None:
    draft = Draft(_state_with(_ENDED, *_ALL))
    draft.put(replace(_ALL[0], id="c0"))
    draft.put(replace(_ALL[1], state=CheckpointState.DELETING))
    draft.delete(Checkpoint, "c3")
    state_by_id = {checkpoint.id: checkpoint.state.value for checkpoint in draft.checkpoints_of("1.1")}
    assert state_by_id == {"c0": "COMPLETED", "c1": "COMPLETED", "c2": "DELETING"}
