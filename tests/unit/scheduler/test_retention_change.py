"""A changed policy: in the configuration, in the checkpoints that it deletes, within its limits, step by step."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import VALIDATION_METRICS, Checkpoint, Experiment, RetentionChange, Trial
from gangline.domain.resource import Counter
from gangline.domain.state import CheckpointState, DeletionStage, Outcome, State
from gangline.errors import GanglineError
from services.scheduler.state.records import SchedulerState, get
from services.scheduler.transition.checkpoint import MAX_MARKED
from services.scheduler.transition.retention_change import change_retention, preview_retention, review_checkpoints
from tests.support.scheduler import config_json

_EXPERIMENT = Experiment(1, "e", "ann", config_json(), "0", State.TERMINAL, Outcome.COMPLETED)
_LOSSES = (0.5, 0.2, 0.4, 0.3)
NOTHING = RetentionChange(0, 0, 0)


def _trial(number: int, state: State = State.TERMINAL) -> Trial:
    return Trial(f"1.{number}", 1, number, state=state, latest_checkpoint_id=f"c{number}-{len(_LOSSES) - 1}")


def _checkpoints(number: int) -> list[Checkpoint]:
    """The checkpoints of a trial; the second one is its best, and trial 2 is better than trial 1."""
    return [
        Checkpoint(
            f"c{number}-{index}", f"1.{number}", 1, index, "/s", created_at=float(index),
            metadata_json=json.dumps({VALIDATION_METRICS: {"loss": loss / number}}),
        )
        for index, loss in enumerate(_LOSSES)
    ]  # fmt: skip


def _state(*records: object, experiment: Experiment = _EXPERIMENT) -> SchedulerState:
    return SchedulerState.of([Counter(9), experiment, *records])  # type: ignore[list-item]  # a test gives records


def _kept(state: SchedulerState) -> list[str]:
    return sorted(
        each.id for each in state.all_of(Checkpoint) if each.state is CheckpointState.COMPLETED
    )  # fmt: skip


def _apply(state: SchedulerState, change: RetentionChange) -> int:
    """Changes the policy and reviews the checkpoints to the end. Returns the number of steps."""
    state.apply(change_retention(state, 1, change), 2)
    steps = 0
    while step := review_checkpoints(state, 1):
        state.apply(step, 3)
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (RetentionChange(save_trial_latest=2), ["c1-1", "c1-2", "c1-3", "c2-1", "c2-2", "c2-3"]),
        (RetentionChange(save_trial_best=2), ["c1-1", "c1-3", "c2-1", "c2-3"]),
        (RetentionChange(0, 1, 0), ["c1-1", "c2-1"]),
        (RetentionChange(0, 0, 1), ["c1-3", "c2-3"]),
        (RetentionChange(1, 0, 0), ["c2-1"]),
        (RetentionChange(2, 0, 1), ["c1-3", "c2-1", "c2-3"]),
        (NOTHING, []),
    ],
)
def test_an_ended_experiment_keeps_what_the_new_policy_keeps(change: RetentionChange, kept: list[str]) -> None:
    state = _state(_trial(1), _trial(2), *_checkpoints(1), *_checkpoints(2))
    preview = [checkpoint.id for checkpoint in preview_retention(state, 1, change)]
    before = _kept(state)
    assert _apply(state, change) == 1
    assert _kept(state) == kept
    assert sorted(preview) == sorted(set(before) - set(kept))
    assert not get(state, Experiment, 1).reviews_checkpoints


def test_the_configuration_has_the_policy_so_that_forks_and_later_checkpoints_follow_it() -> None:
    state = _state(_trial(1), *_checkpoints(1))
    _apply(state, RetentionChange(0, 2, 3, 30, -1))
    config = json.loads(get(state, Experiment, 1).config_json)
    storage = {key: config["checkpoint_storage"][key] for key in config["checkpoint_storage"] if "save" in key}
    assert storage == {"save_experiment_best": 0, "save_trial_best": 2, "save_trial_latest": 3}
    assert config["retention_policy"] == {"log_retention_days": 30, "metric_retention_days": -1}
    assert config["entrypoint"] == json.loads(_EXPERIMENT.config_json)["entrypoint"]


@pytest.mark.parametrize("state_of_trial", [State.QUEUED, State.RUNNING, State.STOPPING])
def test_what_a_trial_goes_on_from_and_started_from_stays(state_of_trial: State) -> None:
    experiment = replace(_EXPERIMENT, state=State.RUNNING, outcome=None)
    trial = replace(_trial(1, state_of_trial), attempts=2)
    allocation = Allocation("1.1.2", "1.1", 1, 2, 1, "default", (Member("a", 0),), checkpoint_id="c1-0")
    state = _state(trial, allocation, *_checkpoints(1), experiment=experiment)
    _apply(state, NOTHING)
    assert _kept(state) == ["c1-0", "c1-3"]


def test_a_large_experiment_is_reviewed_in_bounded_steps_and_a_new_leader_goes_on() -> None:
    trials = [_trial(number) for number in range(1, 31)]
    checkpoints = [each for number in range(1, 31) for each in _checkpoints(number)]
    state = _state(*trials, *checkpoints)
    state.apply(change_retention(state, 1, NOTHING), 2)
    step = review_checkpoints(state, 1)
    assert len(list(step.all_of(Checkpoint))) == MAX_MARKED
    state.apply(step, 3)
    # The record still asks for the review, so the leader that reads it next continues.
    again = SchedulerState.of([*state.all_of(Experiment), *state.all_of(Trial), *state.all_of(Checkpoint)])
    assert get(again, Experiment, 1).reviews_checkpoints
    while step := review_checkpoints(again, 1):
        assert len(step.puts) <= MAX_MARKED + 1
        again.apply(step, 4)
    assert _kept(again) == []


def test_what_is_so_already_writes_nothing_and_days_of_logs_review_nothing() -> None:
    state = _state(_trial(1), *_checkpoints(1))
    assert not change_retention(state, 1, RetentionChange(save_trial_best=1, save_trial_latest=1))
    state.apply(change_retention(state, 1, RetentionChange(log_retention_days=3)), 2)
    assert not get(state, Experiment, 1).reviews_checkpoints
    assert not review_checkpoints(state, 1)
    assert len(_kept(state)) == len(_LOSSES)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (RetentionChange(), "retention.nothing"),
        (RetentionChange(save_trial_best=-1), "retention.checkpoints"),
        (RetentionChange(save_experiment_best=2**31), "retention.checkpoints"),
        (RetentionChange(log_retention_days=-2), "retention.days"),
        (RetentionChange(metric_retention_days=2**15), "retention.days"),
    ],
)
def test_numbers_out_of_range_are_refused(change: RetentionChange, code: str) -> None:
    for call in (change_retention, preview_retention):
        with pytest.raises(GanglineError) as failure:
            call(_state(), 1, change)
        assert failure.value.code == code
        assert "\n" not in failure.value.message


def test_an_experiment_that_is_being_deleted_or_was_keeps_its_policy() -> None:
    deleting = replace(_EXPERIMENT, deletion=DeletionStage.FILES)
    cases = ((_state(experiment=deleting), "experiment.deleting"), (SchedulerState(), "experiment.not_found"))
    for state, code in cases:
        with pytest.raises(GanglineError) as failure:
            change_retention(state, 1, NOTHING)
        assert failure.value.code == code
    assert not review_checkpoints(SchedulerState(), 1)
