"""Continuing an ended experiment: the same trial from its newest checkpoint, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gangline.domain.allocation import ExitReport, Request
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Counter
from gangline.domain.search import Search
from gangline.domain.state import CheckpointState, DeletionStage, ExitKind, Outcome, State
from gangline.errors import GanglineError
from services.scheduler.state.records import Record, SchedulerState, get
from services.scheduler.state.rules import Rules
from services.scheduler.transition.restart import MAX_EARLIER_CODES, NewCode, continue_experiment
from tests.support.scheduler import config_json

RULES = Rules()
EXPERIMENT = Experiment(
    1, "e", "ann", config_json(), "a" * 64, State.TERMINAL, Outcome.COMPLETED, "its trial completed",
    request_id="r1", created_at=1.0, ended_at=3.0,
)  # fmt: skip
TRIAL = Trial(
    "1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, created_at=1.0, ended_at=3.0, attempts=2, restarts=5,
    infrastructure_failures=4, failures_in_a_row=3, batches_completed=100, latest_checkpoint_id="new",
    length_batches=100, warning="it trains past its length",
    last_failure=ExitReport("a1", ExitKind.USER_ERROR, "boom", batches_completed=0, signature="boom"),
)  # fmt: skip
NEW = Checkpoint("new", "1.1", 1, 100, "file:///s/new", created_at=3.0)
OLD = Checkpoint("old", "1.1", 1, 50, "file:///s/old", created_at=2.0)


def records_of(*others: Record, experiment: Experiment = EXPERIMENT, trial: Trial = TRIAL) -> SchedulerState:
    search = Search(1, 7, num_events=2, num_wanted=1, num_planned=1, is_shut_down=True)
    return SchedulerState.of([Counter(9), experiment, trial, search, *others])


def changed(path: str, value: Any, base: str = EXPERIMENT.config_json) -> str:
    config = json.loads(base)
    *sections, key = path.split(".")
    section = config
    for name in sections:
        section = section.setdefault(name, {})
    section[key] = value
    return config_json(**config)


LONGER = changed("searcher.max_length", {"batches": 200})


def go_on(
    records: SchedulerState, config: str = LONGER, request_id: str = "c1", code: NewCode | None = None
) -> SchedulerState:
    records.apply(continue_experiment(records, 1, config, request_id, user="ann", code=code, rules=RULES, now=5.0), 2)
    return records


def test_the_trial_is_queued_again_behind_those_that_wait() -> None:
    records = go_on(records_of(NEW))
    experiment, trial = get(records, Experiment, 1), get(records, Trial, "1.1")
    assert (experiment.state, experiment.outcome, experiment.ended_at) == (State.QUEUED, None, 0.0)
    assert (experiment.config_json, experiment.reason) == (LONGER, "")
    assert (trial.state, trial.outcome, trial.ended_at, trial.last_failure) == (State.QUEUED, None, 0.0, None)
    assert (trial.attempts, trial.restarts, trial.infrastructure_failures, trial.failures_in_a_row) == (2, 0, 0, 0)
    assert (trial.batches_completed, trial.latest_checkpoint_id) == (100, "new")
    assert (trial.length_batches, trial.warning) == (None, "")
    assert get(records, Request, "1.1").submitted_at == 5.0


def test_the_same_request_continues_once() -> None:
    records = go_on(records_of(NEW))
    assert not continue_experiment(records, 1, LONGER, "c1", user="ann", rules=RULES, now=6.0)
    with pytest.raises(GanglineError, match="has not ended, so it cannot be continued"):
        continue_experiment(records, 1, LONGER, "c2", user="ann", rules=RULES, now=6.0)
    ended = replace(get(records, Experiment, 1), state=State.TERMINAL, outcome=Outcome.FAILED)
    assert not continue_experiment(records_of(NEW, experiment=ended), 1, LONGER, "c1", user="ann", rules=RULES, now=7.0)


@pytest.mark.parametrize("state", [None, CheckpointState.DELETING])
def test_it_begins_from_the_newest_checkpoint_that_is_kept(state: CheckpointState | None) -> None:
    gone = [] if state is None else [replace(NEW, state=state)]
    assert get(go_on(records_of(OLD, *gone)), Trial, "1.1").latest_checkpoint_id == "old"
    with pytest.raises(GanglineError) as refusal:
        go_on(records_of(*gone))
    assert refusal.value.code == "trial.no_checkpoint"


def test_a_trial_that_never_had_a_checkpoint_begins_anew() -> None:
    trial = replace(TRIAL, outcome=Outcome.FAILED, batches_completed=0, latest_checkpoint_id="")
    records = go_on(records_of(trial=trial), EXPERIMENT.config_json)
    assert get(records, Trial, "1.1").state is State.QUEUED


def test_a_trial_that_did_not_complete_continues_without_more_length() -> None:
    records = records_of(NEW, trial=replace(TRIAL, outcome=Outcome.CANCELED))
    assert get(go_on(records, changed("searcher.max_length", {"batches": 100})), Trial, "1.1").state is State.QUEUED


def test_the_length_that_an_attempt_had_reported_does_not_outlive_its_configuration() -> None:
    ended = replace(TRIAL, outcome=Outcome.CANCELED, batches_total=100)
    assert get(go_on(records_of(NEW, trial=ended), EXPERIMENT.config_json), Trial, "1.1").batches_total == 100
    assert get(go_on(records_of(NEW, trial=ended)), Trial, "1.1").batches_total == 0


@pytest.mark.parametrize(
    ("path", "value", "code", "text"),
    [
        ("searcher.max_length", {"batches": 100}, "config.trained", "trial 1.1 has trained 100 batches; continue it "),
        ("searcher.metric", "other", "config.fixed", "searcher.metric: a trial that continues keeps "),
        ("hyperparameters", {"rate": 2}, "config.fixed", "hyperparameters: a trial that continues keeps {}"),
        ("reproducibility.experiment_seed", 9, "config.fixed", "reproducibility: a trial that continues keeps "),
        ("name", "another", "config.fixed", "name: a trial that continues keeps "),
    ],
)
def test_what_a_trial_cannot_change_on_the_way(path: str, value: Any, code: str, text: str) -> None:
    with pytest.raises(GanglineError) as refusal:
        go_on(records_of(NEW), changed(path, value))
    assert refusal.value.code == code
    assert text in refusal.value.message


@pytest.mark.parametrize("path", ["max_restarts", "resources.slots_per_trial", "scheduling_unit"])
def test_other_settings_may_change(path: str) -> None:
    config = json.loads(LONGER) | json.loads(changed(path, 2)) | {"searcher": json.loads(LONGER)["searcher"]}
    assert get(go_on(records_of(NEW), config_json(**config)), Experiment, 1).state is State.QUEUED


def test_a_search_is_forked_instead() -> None:
    search = {"name": "random", "metric": "loss", "max_length": {"batches": 10}, "max_trials": 1}
    experiment = replace(EXPERIMENT, config_json=config_json(searcher=search))
    with pytest.raises(GanglineError, match=r"is a search \(random\), so it cannot be continued; begin a new one"):
        go_on(records_of(NEW, experiment=experiment))


def test_other_code_takes_the_place_of_the_code_that_stays_stored() -> None:
    experiment = get(go_on(records_of(NEW), code=NewCode("b" * 64, None)), Experiment, 1)
    assert (experiment.code_sha256, experiment.earlier_code_sha256s) == ("b" * 64, ("a" * 64,))
    ended = replace(experiment, state=State.TERMINAL, outcome=Outcome.FAILED)
    same = get(go_on(records_of(NEW, experiment=ended), request_id="c2", code=NewCode("b" * 64, None)), Experiment, 1)
    assert same.code_sha256s == ("a" * 64, "b" * 64)


def test_code_that_is_being_deleted_or_one_too_many_is_refused() -> None:
    doomed = replace(EXPERIMENT, id=2, request_id="r2", code_sha256="b" * 64, deletion=DeletionStage.CODE)
    with pytest.raises(GanglineError, match="is being deleted with experiment 2; upload it again"):
        go_on(records_of(NEW, doomed), code=NewCode("b" * 64, None))
    many = replace(EXPERIMENT, earlier_code_sha256s=tuple(f"{number:064}" for number in range(MAX_EARLIER_CODES)))
    with pytest.raises(GanglineError, match="has had 51 versions of its code; fork it instead"):
        go_on(records_of(NEW, experiment=many), code=NewCode("b" * 64, None))


@pytest.mark.parametrize(
    ("path", "value", "is_other"),
    [
        ("searcher.max_length", {"batches": 900}, False),
        ("max_restarts", 9, False),
        ("entrypoint", "python3 other.py", True),
        ("environment.environment_variables", ["A=b"], True),
        ("resources.slots_per_trial", 2, True),
    ],
)
def test_which_continuations_may_run_other_programs(path: str, value: Any, is_other: bool) -> None:
    """The configuration has the owner's secrets. bob changes the experiment as an admin of its workspace."""
    config = changed(path, value, LONGER)
    call = partial(continue_experiment, records_of(NEW), 1, config, "c1", rules=RULES, now=5.0)
    assert call(user="ann")
    if is_other:
        with pytest.raises(GanglineError) as refusal:
            call(user="bob")
        assert refusal.value.code == "auth.not_owner"
    else:
        assert call(user="bob")


def test_other_code_runs_by_order_of_the_owner_alone() -> None:
    call = partial(
        continue_experiment, records_of(NEW), 1, LONGER, "c1", code=NewCode("b" * 64, None), rules=RULES, now=5.0
    )
    assert call(user="ann")
    with pytest.raises(GanglineError) as refusal:
        call(user="bob")
    assert refusal.value.code == "auth.not_owner"
