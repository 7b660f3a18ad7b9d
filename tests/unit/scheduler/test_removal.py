"""Archiving and deleting experiments: what is refused, and the stages of a deletion on the real transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Counter
from gangline.domain.search import Search, SearchLog
from gangline.domain.state import CheckpointState, DeletionStage, Outcome, State
from gangline.errors import ErrorKind, GanglineError
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.records import SchedulerState as Known
from services.scheduler.state.rules import Rules
from services.scheduler.transition.checkpoint import MAX_MARKED, confirm_checkpoints_deleted
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.removal import (
    MAX_REMOVED,
    archive_experiment,
    check_code_stays,
    confirm_deleted,
    delete_experiment,
    unarchive_experiment,
)
from tests.support.scheduler import config_json

_ENDED = Experiment(
    1, "e", "ann", config_json(), "a" * 64, State.TERMINAL, Outcome.COMPLETED, request_id="r1", ended_at=1.0
)


def _trial(number: int, experiment_id: int = 1, **fields: object) -> Trial:
    ended = Trial(f"{experiment_id}.{number}", experiment_id, number, state=State.TERMINAL, outcome=Outcome.COMPLETED)
    return replace(ended, **fields)  # type: ignore[arg-type]  # a test names what it gives


def _state_with(*records: object) -> Known:
    return Known.of([Counter(9), *records])  # type: ignore[list-item]  # a test gives records


def _apply(state: Known, transition: Callable[[Records], StateChange]) -> StateChange:
    change = transition(state)
    state.apply(change, state.revision + 1)
    return change


def _continue(state: Known) -> int:
    """Returns the number of steps until the leader has nothing left to do."""
    num_steps = 0
    while change := _apply(state, lambda records: continue_change(records, 1, Rules(), 0.0)):
        assert change.num_operations <= 128, "etcd refuses larger transactions"
        num_steps += 1
    return num_steps


def test_an_ended_experiment_is_archived_and_back() -> None:
    state = _state_with(_ENDED)
    _apply(state, lambda records: archive_experiment(records, 1))
    assert get(state, Experiment, 1) == replace(_ENDED, archived=True)
    assert not archive_experiment(state, 1)
    _apply(state, lambda records: unarchive_experiment(records, 1))
    assert get(state, Experiment, 1) == _ENDED
    assert not unarchive_experiment(state, 1)


@pytest.mark.parametrize(("change", "done"), [(archive_experiment, "archived"), (delete_experiment, "deleted")])
@pytest.mark.parametrize("stage", [State.QUEUED, State.RUNNING, State.STOPPING, State.PAUSED])
def test_what_has_not_ended_is_refused(change: Callable[[Records, int], StateChange], done: str, stage: State) -> None:
    state = _state_with(replace(_ENDED, state=stage, outcome=None))
    with pytest.raises(GanglineError) as caught:
        change(state, 1)
    assert (caught.value.code, caught.value.kind) == ("experiment.not_ended", ErrorKind.CONFLICT)
    assert caught.value.message == (
        f"experiment 1 has not ended ({stage}), so it cannot be {done}; end it first with: gangline experiment kill 1"
    )


@pytest.mark.parametrize("change", [archive_experiment, unarchive_experiment, delete_experiment])
def test_an_id_that_was_never_given_out_is_not_found(change: Callable[[Records, int], StateChange]) -> None:
    for experiment_id in (9, 0, -1):
        with pytest.raises(GanglineError) as caught:
            change(_state_with(), experiment_id)
        assert caught.value.code == "experiment.not_found"


def test_a_deletion_takes_everything_and_the_experiment_last() -> None:
    trials = [_trial(number) for number in range(1, MAX_REMOVED + 40)]
    checkpoints = [Checkpoint(f"c{number}", "1.1", 1, number, "/s") for number in range(MAX_MARKED + 5)]
    logs = [SearchLog(1, page) for page in range(3)]
    other = replace(_ENDED, id=2, code_sha256="b" * 64, request_id="r2")
    others = (other, _trial(1, 2), Search(2, 7), SearchLog(2, 0), Checkpoint("o", "2.1", 2, 1, "/s"))
    state = _state_with(_ENDED, *trials, *checkpoints, Search(1, 7), *logs, *others)
    _apply(state, lambda records: delete_experiment(records, 1))
    assert get(state, Experiment, 1).deletion is DeletionStage.FILES
    assert not delete_experiment(state, 1), "a repeated call changes nothing"
    assert _continue(state) == 1
    own_states = {checkpoint.state for checkpoint in state.all_of(Checkpoint) if checkpoint.experiment_id == 1}
    assert own_states == {CheckpointState.DELETING}
    assert not confirm_deleted(state, 1, DeletionStage.FILES), "checkpoints are left"
    _apply(state, lambda records: confirm_checkpoints_deleted(records, [checkpoint.id for checkpoint in checkpoints]))
    assert not confirm_deleted(state, 1, DeletionStage.CODE), "another stage"
    assert not confirm_deleted(state, 1, None)
    assert _continue(state) == 0, "the trials are needed to find the files"
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.FILES))
    assert _continue(state) == 2
    assert state.trials_of(1) == []
    assert get(state, Experiment, 1).deletion is DeletionStage.CODE
    assert not confirm_deleted(state, 1, DeletionStage.FILES), "a late report of an earlier stage"
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.CODE))
    left = [record for table in state.tables.values() for record in table.values()]
    assert left == [*_state_order(state, Counter(9), *others)]
    assert state.experiment_of_request("r1") is None
    assert state.experiments_in_deletion() == []
    assert not delete_experiment(state, 1), "what is deleted can be deleted again"
    assert not confirm_deleted(state, 1, DeletionStage.CODE)


def test_steps_that_share_a_transaction_see_what_the_earlier_ones_removed() -> None:
    trials = [_trial(number) for number in range(1, MAX_REMOVED + 2)]
    state = _state_with(replace(_ENDED, deletion=DeletionStage.RECORDS), *trials)
    draft = Draft(state)
    for _ in range(2):
        draft.add(continue_change(draft, 1, Rules(), 0.0))
    assert draft.trials_of(1) == []
    assert [experiment.deletion for experiment in draft.experiments_in_deletion()] == [DeletionStage.CODE]
    draft.add(confirm_deleted(draft, 1, DeletionStage.CODE))
    assert draft.experiments_in_deletion() == []
    assert draft.experiment_of_request("r1") is None


def _state_order(state: Known, *records: object) -> list[object]:
    """Returns the records in the order of the tables."""
    kinds = list(state.tables)
    return sorted(records, key=lambda record: kinds.index(type(record)))


def test_code_that_another_experiment_uses_stays() -> None:
    state = _state_with(_ENDED, _trial(1), replace(_ENDED, id=2, request_id="r2"))
    _apply(state, lambda records: delete_experiment(records, 1))
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.FILES))
    _continue(state)
    assert state.find(Experiment, 1) is None
    check_code_stays(state, "a" * 64, None)


def test_of_two_deletions_one_takes_the_shared_code() -> None:
    state = _state_with(_ENDED, replace(_ENDED, id=2, request_id="r2"))
    for experiment_id in (1, 2):
        _apply(state, lambda records, number=experiment_id: delete_experiment(records, number))  # type: ignore[misc]
        _apply(
            state,
            lambda records, number=experiment_id: confirm_deleted(records, number, DeletionStage.FILES),  # type: ignore[misc]
        )
    _continue(state)
    assert state.find(Experiment, 1) is None
    while _apply(state, lambda records: continue_change(records, 2, Rules(), 0.0)):
        pass
    assert get(state, Experiment, 2).deletion is DeletionStage.CODE


def test_all_code_that_an_experiment_had_goes_with_it_except_for_shared_code() -> None:
    others = ("b" * 64, "c" * 64)
    state = _state_with(
        replace(_ENDED, earlier_code_sha256s=others), replace(_ENDED, id=2, request_id="r2", code_sha256="c" * 64)
    )
    _apply(state, lambda records: delete_experiment(records, 1))
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.FILES))
    _continue(state)
    assert set(get(state, Experiment, 1).code_sha256s) == {"a" * 64, "b" * 64}
    for doomed in ("a" * 64, "b" * 64):
        with pytest.raises(GanglineError, match="is being deleted with experiment 1"):
            check_code_stays(state, doomed, None)
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.CODE))
    for gone in ("a" * 64, "b" * 64):
        with pytest.raises(GanglineError, match="may have been deleted with an experiment just now"):
            check_code_stays(state, gone, 6)
    check_code_stays(state, "c" * 64, 6)


def test_no_submit_takes_code_that_is_being_deleted() -> None:
    state = _state_with(replace(_ENDED, deletion=DeletionStage.CODE))
    assert not _is_free(state, num_deleted=None)
    check_code_stays(state, "b" * 64, None)
    check_code_stays(_state_with(replace(_ENDED, deletion=DeletionStage.FILES)), "a" * 64, None)


def test_no_submit_takes_code_that_was_deleted_after_it_was_found_in_the_storage() -> None:
    """Of eight experiments one is left; a gateway says how many were deleted when it found the code."""
    state = _state_with(replace(_ENDED, deletion=DeletionStage.CODE))
    assert not _is_free(state, num_deleted=7)
    draft = Draft(state)
    draft.add(confirm_deleted(draft, 1, DeletionStage.CODE))
    assert not _is_free(draft, num_deleted=7), "in the same transaction"
    assert _is_free(draft, num_deleted=7, code_sha256="b" * 64)
    _apply(state, lambda records: confirm_deleted(records, 1, DeletionStage.CODE))
    assert not _is_free(state, num_deleted=7)
    assert _is_free(state, num_deleted=8)
    assert _is_free(state, num_deleted=7, code_sha256="b" * 64), "other code"
    assert _is_free(state, num_deleted=None), "a gateway of an earlier version does not say"
    next_leader = _state_with()
    assert not _is_free(next_leader, num_deleted=7, code_sha256="b" * 64), "it does not know whose code is gone"
    assert _is_free(next_leader, num_deleted=8)


def _is_free(records: Records, num_deleted: int | None, code_sha256: str = "a" * 64) -> bool:
    """Returns whether a submit may take the code."""
    try:
        check_code_stays(records, code_sha256, num_deleted)
    except GanglineError as error:
        if (error.code, error.kind) != ("code.deleting", ErrorKind.CONFLICT):
            raise
        return False
    return True


def test_a_checkpoint_that_a_live_trial_of_another_experiment_needs_is_refused() -> None:
    state = _state_with(
        _ENDED, _trial(1), Checkpoint("c1", "1.1", 1, 1, "/s"),
        replace(_ENDED, id=2, state=State.RUNNING, outcome=None),
        _trial(1, 2, state=State.QUEUED, outcome=None, latest_checkpoint_id="c1"),
    )  # fmt: skip
    with pytest.raises(GanglineError) as caught:
        delete_experiment(state, 1)
    assert (caught.value.code, caught.value.message) == (
        "experiment.needed",
        "trial 2.1 (QUEUED) goes on from checkpoint c1 of experiment 1, so nothing was deleted; wait for its end, or "
        "end it with: gangline trial kill 2.1",
    )


def test_an_experiment_that_is_being_deleted_is_not_archived() -> None:
    state = _state_with(replace(_ENDED, deletion=DeletionStage.FILES))
    for change in (archive_experiment, unarchive_experiment):
        with pytest.raises(GanglineError) as caught:
            change(state, 1)
        assert caught.value.code == "experiment.deleting"
