"""Names, descriptions, notes and labels of experiments: in the record and in the configuration, within limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangline.config.layer.experiment_text import MAX_LABELS, MAX_TEXT_LENGTH
from gangline.domain.experiment import Experiment, ExperimentFilter, TextChange
from gangline.domain.resource import Counter
from gangline.domain.state import DeletionStage, Outcome, State
from gangline.errors import GanglineError
from services.scheduler.state.records import SchedulerState, get
from services.scheduler.transition.project.text_change import change_texts
from tests.support.scheduler import config_json

_EXPERIMENT = Experiment(1, "e", "ann", config_json(), "a" * 64, State.RUNNING, request_id="r1")


def _changed(experiment: Experiment, change: TextChange) -> Experiment:
    state = SchedulerState.of([Counter(9), experiment])
    state.apply(change_texts(state, 1, change), 2)
    return get(state, Experiment, 1)


@pytest.mark.parametrize("state", list(State))
def test_texts_change_in_every_state(state: State) -> None:
    experiment = replace(_EXPERIMENT, state=state)
    changed = _changed(experiment, TextChange("new", "of what", "seen\ntwice", ("b", "a", "b")))
    assert (changed.name, changed.notes, changed.labels, changed.state) == ("new", "seen\ntwice", ("a", "b"), state)
    config = json.loads(changed.config_json)
    assert (config["name"], config["description"], config["labels"]) == ("new", "of what", ["a", "b"])
    assert config["entrypoint"] == json.loads(experiment.config_json)["entrypoint"]
    fewer = _changed(changed, TextChange(add_labels=("c",), remove_labels=("a", "never there")))
    assert (fewer.labels, fewer.name, fewer.notes) == (("b", "c"), "new", "seen\ntwice")


def test_a_change_to_what_is_there_writes_nothing() -> None:
    experiment = _changed(_EXPERIMENT, TextChange("new", add_labels=("a",)))
    state = SchedulerState.of([Counter(9), experiment])
    assert not change_texts(state, 1, TextChange("new", add_labels=("a",), remove_labels=("b",)))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (TextChange(), "texts.nothing"),
        (TextChange(name=""), "texts.name"),
        (TextChange(name=" x"), "texts.name"),
        (TextChange(name="two\nlines"), "texts.name"),
        (TextChange(name="x" * 257), "texts.name"),
        (TextChange(add_labels=("\x1b[2J",)), "texts.label"),
        (TextChange(remove_labels=("",)), "texts.label"),
        (TextChange(add_labels=("x" * 129,)), "texts.label"),
        (TextChange(add_labels=tuple(map(str, range(MAX_LABELS + 1)))), "texts.label"),
        (TextChange(notes="x" * (MAX_TEXT_LENGTH + 1)), "texts.too_long"),
        (TextChange(description="\x00"), "texts.text"),
        (TextChange(notes="\ud800"), "texts.text"),
    ],
)
def test_a_text_that_cannot_be_shown_or_kept_is_refused(change: TextChange, code: str) -> None:
    with pytest.raises(GanglineError) as failure:
        _changed(_EXPERIMENT, change)
    assert failure.value.code == code
    assert "\n" not in failure.value.message


def test_an_experiment_that_is_being_deleted_keeps_its_texts() -> None:
    deleting = replace(_EXPERIMENT, state=State.TERMINAL, deletion=DeletionStage.FILES)
    with pytest.raises(GanglineError) as failure:
        _changed(deleting, TextChange(notes="x"))
    assert failure.value.code == "experiment.deleting"


@pytest.mark.parametrize(
    ("wanted", "is_match"),
    [
        (ExperimentFilter(), True),
        (ExperimentFilter(labels=("a",)), True),
        (ExperimentFilter(labels=("a", "c")), False),
        (ExperimentFilter(states=(State.RUNNING, State.PAUSED)), False),
        (ExperimentFilter(states=(State.RUNNING,), outcomes=(Outcome.FAILED,)), True),
        (ExperimentFilter(outcomes=(Outcome.COMPLETED,)), False),
        (ExperimentFilter(owners=("bob", "ann")), True),
        (ExperimentFilter(owners=("bob",)), False),
        (ExperimentFilter(name_contains="DIG"), True),
        (ExperimentFilter(name_contains="x"), False),
        (ExperimentFilter(labels=("a",), owners=("bob",)), False),
    ],
)
def test_all_conditions_of_a_filter_have_to_hold(wanted: ExperimentFilter, is_match: bool) -> None:
    experiment = replace(_EXPERIMENT, name="digits", labels=("a", "b"), state=State.TERMINAL, outcome=Outcome.FAILED)
    assert wanted.matches(experiment) is is_match
