"""Optuna's searchers by themselves: the same record gives the same suggestion, whichever leader makes it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from statistics import mean
from typing import Any

import pytest
import torch

from gangline.config.searcher import Searcher as Section
from gangline.domain.search import SearchEvent
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import Outcome, SearchEventKind
from gangline.errors import GanglineError
from services.scheduler.searcher.interface import Brief, CloseTrial, CreateTrial, ShutDown
from services.scheduler.searcher.optuna_class import _PACKAGES, check_packages
from services.scheduler.searcher.sampled import Sampled
from services.scheduler.searcher.study import Study, StudyRecord, first_suggestions

CREATED = SearchEvent(SearchEventKind.EXPERIMENT_CREATED)
SPACE = {
    "lr": {"type": "log", "minval": -4, "maxval": -1},
    "net": {
        "width": {"type": "int", "minval": 1, "maxval": 64},
        "drop": {"type": "double", "minval": 0, "maxval": 0.5},
        "layers": {"type": "categorical", "vals": [[8], [8, 8], "none"]},
    },
    "size": 16,
}


def _brief(name: str = "tpe", seed: int = 7, space: dict[str, Any] | None = None, **keys: Any) -> Brief:
    values = {"metric": "loss", "max_trials": 30, "max_concurrent_trials": 3, "max_length": 8, **keys}
    section = settle_values({"searcher": Section.model_validate({"name": name, **values})}).searcher
    return Brief(section, space or SPACE, seed)


def _loss(values: dict[str, Any]) -> float:
    return float(abs(values["net"]["drop"] - 0.3) + abs(values["net"]["width"] - 20) / 64)


class _Leader:
    """Runs a search to its end, or goes on with one from its record. Each trial validates at 4 and 8 batches."""

    def __init__(self, brief: Brief) -> None:
        self.brief = brief
        self.events: list[SearchEvent] = []
        self.trials: list[dict[str, Any]] = []
        self.pruned: list[int] = []
        self.open: list[int] = []
        self.is_over = False
        self.take_over()
        self.tell(CREATED)

    def take_over(self) -> None:
        """Starts anew from events and hyperparameters, which are what etcd holds, as JSON."""
        self.trials = json.loads(json.dumps(self.trials))
        self.searcher = Sampled(self.brief)
        for event in self.events:
            self.searcher.on_event(event)
        self.study = Study(self.brief)

    def tell(self, event: SearchEvent) -> None:
        operations = self.searcher.on_event(event)
        self.events.append(event)
        num_new = sum(isinstance(operation, CreateTrial) for operation in operations)
        self.open += range(len(self.trials) + 1, len(self.trials) + 1 + num_new)
        self.pruned += [operation.number for operation in operations if isinstance(operation, CloseTrial)]
        self.is_over = any(isinstance(operation, ShutDown) for operation in operations)
        self.create()

    def create(self) -> None:
        record = StudyRecord(self.trials, tuple(self.searcher.told), tuple(self.searcher.num_told_by_number))
        made = self.study.suggest(record, 2)
        assert list(made) == list(range(len(self.trials) + 1, len(self.trials) + 1 + len(made)))
        if made:
            self.trials = [*self.trials, *made.values()]
            self.create()

    def step(self, rng: random.Random) -> None:
        """Validates the trial of a random place twice and closes it."""
        number = self.open.pop(rng.randrange(len(self.open)))
        loss = _loss(self.trials[number - 1])
        for batches in (4, 8):
            if number not in self.pruned:
                self.tell(SearchEvent(SearchEventKind.VALIDATED, number, batches, loss, units=batches))
        outcome = Outcome.FAILED if rng.random() < 0.1 else Outcome.COMPLETED
        self.tell(SearchEvent(SearchEventKind.TRIAL_CLOSED, number, 8, loss, outcome=outcome))

    def run(self, *, takes_over: bool) -> list[dict[str, Any]]:
        rng = random.Random(3)
        while not self.is_over:
            self.step(rng)
            if takes_over:
                self.take_over()
        return self.trials


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """torch's threads wait for one another longer than they compute where a Gaussian process is as small as here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("tpe", {}),
        ("tpe", {"sampler": {"multivariate": True, "n_startup_trials": 4}, "pruner": "MedianPruner"}),
        ("optuna", {"sampler": "random"}),
        ("optuna", {"sampler": {"name": "GPSampler", "n_startup_trials": 5}, "max_trials": 9}),
        ("optuna", {"sampler": {"name": "NSGAIISampler", "population_size": 4}}),
        ("optuna", {"sampler": "CmaEsSampler"}),
        ("optuna", {"sampler": {"name": "QMCSampler", "scramble": True}}),
        ("tpe", {"pruner": {"name": "HyperbandPruner", "min_resource": 1, "max_resource": 8}}),
        ("tpe", {"pruner": {"name": "PatientPruner", "wrapped_pruner": "median", "patience": 0}}),
    ],
)
def test_every_leader_makes_the_same_trials(name: str, keys: dict[str, Any]) -> None:
    # Samplers draw their first ten trials or fewer at random, and the rest from what they were told.
    keys = {"max_trials": 18, **keys}
    undisturbed, disturbed = _Leader(_brief(name, **keys)), _Leader(_brief(name, **keys))
    trials = undisturbed.run(takes_over=False)
    assert disturbed.run(takes_over=True) == trials
    assert disturbed.pruned == undisturbed.pruned
    assert len(trials) == undisturbed.brief.section.max_trials
    assert _Leader(_brief(name, seed=8, **keys)).run(takes_over=False) != trials
    for trial in trials:
        assert trial["size"] == 16
        assert 1e-4 <= trial["lr"] <= 1e-1
        assert trial["net"]["layers"] in ([8], [8, 8], "none")


def test_suggestions_learn_from_results() -> None:
    losses = [_loss(trial) for trial in _Leader(_brief(max_trials=60)).run(takes_over=False)]
    assert mean(losses[40:]) < 0.6 * mean(losses[:10])


def test_a_metric_that_should_grow_is_maximised() -> None:
    class Growing(_Leader):
        def step(self, rng: random.Random) -> None:
            number = self.open.pop(0)
            value = -_loss(self.trials[number - 1])
            self.tell(SearchEvent(SearchEventKind.TRIAL_CLOSED, number, 8, value, outcome=Outcome.COMPLETED))

    trials = Growing(_brief(max_trials=60, smaller_is_better=False)).run(takes_over=False)
    losses = [_loss(trial) for trial in trials]
    assert mean(losses[40:]) < 0.6 * mean(losses[:10])


def test_a_pruner_stops_trials_that_are_worse_than_the_others() -> None:
    leader = _Leader(_brief(pruner={"name": "MedianPruner", "n_startup_trials": 2}))
    leader.run(takes_over=False)
    kept = [_loss(trial) for number, trial in enumerate(leader.trials, 1) if number not in leader.pruned]
    pruned = [_loss(leader.trials[number - 1]) for number in leader.pruned]
    assert pruned
    assert sum(pruned) / len(pruned) > sum(kept) / len(kept)


def test_a_pruned_trial_says_why() -> None:
    searcher = Sampled(_brief(pruner={"name": "ThresholdPruner", "upper": 1.0}))
    searcher.on_event(CREATED)
    assert searcher.on_event(SearchEvent(SearchEventKind.VALIDATED, 1, 4, 0.5, units=4)) == []
    (stopped,) = searcher.on_event(SearchEvent(SearchEventKind.VALIDATED, 1, 8, 2.5, units=8))
    assert stopped == CloseTrial(
        1, "its searcher stopped it after 8 batches: ThresholdPruner judged loss 2.5 against the other trials"
    )


def test_the_first_trials_are_those_of_the_preview() -> None:
    leader = _Leader(_brief())
    assert first_suggestions(_brief(), 10) == leader.trials[:3]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sampler": "TPESamplr"}, "searcher.sampler: Optuna has no sampler 'TPESamplr'; did you mean TPESampler?"),
        ({"sampler": "GridSampler"}, "searcher.sampler: GridSampler walks through a grid; use the searcher grid"),
        (
            {"sampler": {"name": "tpe", "n_startup": 3}},
            "searcher.sampler: TPESampler has no argument n_startup; did you mean n_startup_trials?",
        ),
        (
            {"sampler": {"name": "tpe", "seed": 3}},
            "searcher.sampler: TPESampler gets its seed from the experiment; remove it",
        ),
        (
            {"sampler": {"name": "tpe", "gamma": 3}},
            "searcher.sampler: TPESampler takes gamma only from Python code; remove it",
        ),
        (
            {"sampler": {"name": "nsgaii", "population_size": 1}},
            "searcher.sampler: NSGAIISampler refuses these arguments (population_size: 1); see Optuna's documentation",
        ),
        (
            {"sampler": "tpe", "pruner": {"name": "percentile", "percentile": 120}},
            "searcher.pruner: PercentilePruner refuses these arguments (percentile: 120); see Optuna's documentation",
        ),
        (
            {"sampler": "tpe", "pruner": "PercentilePruner"},
            "searcher.pruner: PercentilePruner refuses these arguments (none); see Optuna's documentation",
        ),
    ],
)
def test_what_optuna_has_not_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        Sampled(_brief("optuna", **keys))
    assert caught.value.message == message


_PATIENT = {"name": "patient", "patience": 2, "wrapped_pruner": {"name": "wilcoxon", "p_threshold": 0.1}}


@pytest.mark.parametrize(
    ("keys", "package", "start", "extra"),
    [
        ({"sampler": "cmaes"}, "cmaes", "searcher.sampler: CmaEsSampler needs cmaes", "search"),
        ({"sampler": "gp"}, "torch", "searcher.sampler: GPSampler needs torch", "train"),
        ({"sampler": "tpe", "pruner": _PATIENT}, "scipy", "searcher.pruner: WilcoxonPruner needs scipy", "search"),
    ],
)
def test_a_class_without_its_package_is_refused_at_submit(
    keys: dict[str, Any], package: str, start: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = _brief("optuna", **keys).section
    check_packages(section.sampler, section.pruner)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GanglineError) as caught:
        check_packages(section.sampler, section.pruner)
    assert caught.value.message == f"{start}, which the scheduler does not have; install gangline[{extra}] there"


# Searches with each sampler and pruner of Optuna, long enough that each is asked, without the packages of the extra.
_WITHOUT_PACKAGES = """
import inspect, sys, warnings
for package in ("cmaes", "scipy", "torch"):
    sys.modules[package] = None
warnings.simplefilter("ignore")
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
ARGUMENTS = {
    "PatientPruner": {"wrapped_pruner": None, "patience": 1},
    "PercentilePruner": {"percentile": 50.0},
    "ThresholdPruner": {"lower": 0},
    "WilcoxonPruner": {"p_threshold": 0.1},
}
def train(trial):
    for step in range(4):
        trial.report(trial.suggest_float("x", 0, 1) + trial.suggest_int("n", 1, 5), step)
        trial.should_prune()
    return trial.params["x"]
for module, key in ((optuna.samplers, "sampler"), (optuna.pruners, "pruner")):
    for name in module.__all__:
        made = getattr(module, name)
        is_refused = name in ("BruteForceSampler", "GridSampler", "PartialFixedSampler")
        if is_refused or not inspect.isclass(made) or inspect.isabstract(made):
            continue
        try:
            optuna.create_study(**{key: made(**ARGUMENTS.get(name, {}))}).optimize(train, n_trials=14)
        except ImportError:
            print(name)
"""


def test_the_classes_that_need_a_package_are_known() -> None:
    answer = subprocess.run([sys.executable, "-c", _WITHOUT_PACKAGES], capture_output=True, text=True, check=True)
    assert set(answer.stdout.split()) == set(_PACKAGES)
