"""The refusals of a submit, and the defaults that an admitted one gets."""

from __future__ import annotations

import json
import random

import pytest

from gangline.config import ExperimentConfig
from gangline.config.bound import MAX_TEXT_BYTES
from gangline.domain.limits import MOST_COUNT
from gangline.domain.resource import Agent, Slot
from gangline.domain.search import SearchPreview, trial_lengths
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.scheduler.placement import PoolConfig
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.submit_check import AdmittedSubmission, admit, preview

POOLS = (PoolConfig("default"), PoolConfig("gpu", default_priority=10))
AGENTS = tuple(Agent(f"a{n}", slots=tuple(Slot(f"a{n}/{s}") for s in range(2))) for n in range(2))


def _admit(request_id: str = "r", **fields: object) -> tuple[AdmittedSubmission, list[str]]:
    document = {"entrypoint": "python3 t.py", "searcher": {"name": "single", "metric": "loss"}, **fields}
    submitted = {"request_id": request_id, "owner": "ann", "config_json": json.dumps(document), "code_sha256": "0"}
    return admit(submitted, POOLS, AGENTS, random.Random(1))


def _code(**fields: object) -> str:
    with pytest.raises(GanglineError) as caught:
        _admit(**fields)  # type: ignore[arg-type]  # any field
    return caught.value.code


def test_what_is_admitted_has_a_seed_and_warnings() -> None:
    submission, warnings = _admit()
    assert (submission.settled.resources.slots_per_trial, warnings) == (1, [])
    assert submission.seed == _admit()[0].seed
    assert _admit(reproducibility={"experiment_seed": 3})[0].seed == 3
    _, warnings = _admit(resources={"resource_pool": "gpu"})
    assert "pool 'gpu' has no agents yet" in warnings[0]


def test_a_submit_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ExperimentConfig.model_validate_json.__func__  # type: ignore[attr-defined]  # of a class method

    def count(config_json: str, **options: object) -> ExperimentConfig:
        parsed.append(config_json)
        config: ExperimentConfig = parse(ExperimentConfig, config_json, **options)
        return config

    monkeypatch.setattr(ExperimentConfig, "model_validate_json", count)
    submission, _ = _admit(name="parsed once", hyperparameters={"lr": 0.1})
    assert len(parsed) == 1
    # Every later question about this experiment is answered from the same record.
    assert settled_of(submission.config_json) is submission.settled
    assert len(parsed) == 1


def test_the_record_of_a_submit_is_that_of_the_stored_text() -> None:
    """A new leader reads the text; nothing may depend on who has admitted the experiment."""
    submission, _ = _admit(
        name="from the text",
        resources={"slots_per_trial": 2, "resource_pool": "default", "weight": 2, "priority": 7, "max_slots": 4},
        searcher={"name": "random", "metric": "loss", "max_trials": 3, "max_concurrent_trials": 2},
        hyperparameters={"lr": {"type": "log", "minval": -4, "maxval": -1}, "layers": 3, "nested": {"a": [1, 2.5]}},
        reproducibility={"experiment_seed": 3},
    )
    settled_of.cache_clear()
    assert settled_of(submission.config_json) == submission.settled


def test_the_data_of_a_trial_are_not_kept() -> None:
    """The cache has the configurations of all experiments, and data may be 20,000 values of each."""
    submission, _ = _admit(name="with data", data={"paths": ["a", "b"]})
    assert submission.settled.data == {}
    settled_of.cache_clear()
    assert settled_of(submission.config_json) == submission.settled


def test_preview_draws_and_counts() -> None:
    document = {
        "entrypoint": "python3 t.py",
        "searcher": {"name": "random", "metric": "loss", "max_trials": 5, "max_concurrent_trials": 2},
        "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}, "layers": 3},
        "reproducibility": {"experiment_seed": 3},
    }
    shown = preview(json.dumps(document), 3, random.Random(1))
    assert (shown.searcher, shown.seed, shown.num_trials, shown.max_concurrent_trials) == ("random", 3, 5, 2)
    points = [json.loads(text) for text in shown.hyperparameters_json]
    assert [point["layers"] for point in points] == [3, 3, 3]
    assert len({point["lr"] for point in points}) == 3
    assert all(1e-4 <= point["lr"] <= 1e-1 for point in points)


def test_preview_of_successive_halving_counts_trials_and_lengths() -> None:
    document = {
        "entrypoint": "python3 t.py",
        "searcher": {
            "name": "adaptive_asha", "metric": "loss", "max_trials": 16, "max_length": {"epochs": 64}, "divisor": 4,
        },
        "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}},
    }  # fmt: skip
    shown = preview(json.dumps(document), 2, random.Random(1))
    assert (shown.num_trials, shown.max_concurrent_trials, shown.unit) == (16, 12, "epochs")
    assert [(bracket.num_trials, bracket.max_concurrent_trials) for bracket in shown.brackets] == [(12, 8), (4, 4)]
    rungs = [[(rung.length, rung.min_trials, rung.max_trials) for rung in each.rungs] for each in shown.brackets]
    assert rungs == [[(4, 12, 12), (16, 1, 12), (64, 1, 12)], [(16, 4, 4), (64, 1, 4)]]
    # 12 * 4 + 12 + 48 and 4 * 16 + 48; all 16 trials to the end.
    assert (shown.min_total, shown.max_total) == (220, 16 * 64)
    assert shown.min_total < shown.expected_total < shown.max_total
    lengths = trial_lengths(shown.brackets)
    assert sum(num_trials for num_trials, _ in lengths) == 16
    assert sum(num_trials * length for num_trials, length in lengths) == shown.expected_total
    assert len(shown.hyperparameters_json) == 2


def test_preview_of_other_searchers_counts_the_length_of_all_trials() -> None:
    searcher = {"name": "random", "metric": "loss", "max_trials": 5, "max_length": {"batches": 30}}
    document = {"entrypoint": "python3 t.py", "searcher": searcher}
    shown = preview(json.dumps(document), 0, random.Random(1))
    assert (shown.unit, shown.min_total, shown.expected_total, shown.max_total) == ("batches", 150, 150, 150)
    document["searcher"] = {**searcher, "max_length": None}
    shown = preview(json.dumps(document), 0, random.Random(1))
    assert (shown.unit, shown.max_total) == ("", 0)


@pytest.mark.parametrize("name", ["random", "adaptive_asha"])
def test_preview_of_the_longest_training_fits_into_its_message(name: str) -> None:
    searcher = {"name": name, "metric": "loss", "max_trials": 100, "max_length": {"batches": 2**63 - 1}}
    shown = preview(json.dumps({"entrypoint": "python3 t.py", "searcher": searcher}), 0, random.Random(1))
    assert wire.from_proto(SearchPreview, wire.to_proto(shown)) == shown
    assert shown.max_total == MOST_COUNT
    assert all(bracket.rungs[-1].length == 2**63 - 1 for bracket in shown.brackets)


def test_refusals() -> None:
    assert _code(request_id="") == "request.no_id"
    assert _code(resources={"resource_pool": "none"}) == "pool.not_found"
    assert _code(resources={"slots_per_trial": 7}) == "request.never_fits"
    assert _code(searcher={"name": "random", "metric": "loss"}) == "config.missing_key"
    assert _code(resources={"slots_per_trial": 2, "max_slots": 1}) == "config.invalid_value"
    assert _code(max_restarts="many") == "config.wrong_type"
    assert _code(data={"x": "y" * MAX_TEXT_BYTES}) == "config.too_large"
