"""The settled configuration: its defaults are those of the models, and reading never fails."""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from gangline.config.experiment import ExperimentConfig
from gangline.config.parse import parse_config
from gangline.domain.failure import HangRule
from gangline.domain.settled.reading import load_document, settle, settle_values, with_values
from gangline.domain.settled.record import Settled, SettledParallelism, SettledTask
from gangline.domain.settled.searcher import SettledLength, SettledSearcher
from gangline.domain.state import LogAction, TaskKind

LEAST: dict[str, Any] = {"name": "n", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}}
FULL = """
entrypoint: [python3, train.py]
labels: [a, b]
data: {url: here}
hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}
searcher: {name: adaptive_asha, metric: acc, smaller_is_better: false, max_length: {epochs: 4}, max_trials: 5,
  bracket_rungs: [2, 1]}
resources: {slots_per_trial: 4, min_slots_per_trial: 2, max_slots: 8, weight: 2, priority: 3, shm_size: 4GiB}
parallelism: {strategy: pipeline, stages: 2, split: [b.1], schedule: 1F1B}
optimizations: {nonfinite_loss: ignore}
checkpoint_storage: {save_experiment_best: 2}
log_policies: [{pattern: ecc, action: {type: exclude_node}}]
hang_detection: {seconds: 9, enabled: true}
environment: {environment_variables: [A=1], image: {cpu: i}, add_capabilities: [C], registry_auth: {username: u}}
bind_mounts: [{host_path: /a, container_path: /b, read_only: true}]
task: {kind: COMMAND, idle_seconds: 3}
"""


FULL_JSON = parse_config(FULL)[0].model_dump_json()


def test_without_a_value_each_default_is_that_of_the_models() -> None:
    model = ExperimentConfig.model_validate({**LEAST, "task": {"kind": "NOTEBOOK"}})
    assert settle_values({**LEAST, "task": {"kind": "NOTEBOOK"}}) == settle_values(model)
    assert settle("") == settle("[]") == settle("no JSON") == settle_values(None) == Settled()


@pytest.mark.parametrize("text", [FULL, json.dumps(LEAST)])
def test_a_model_and_its_text_are_settled_alike(text: str) -> None:
    model, _ = parse_config(text)
    assert settle(model.model_dump_json()) == settle_values(model)


def test_all_parts_of_a_configuration_are_read() -> None:
    settled = settle(parse_config(FULL)[0].model_dump_json())
    assert settled.entrypoint == ("python3", "train.py")
    assert settled.searcher.max_length == SettledLength("epochs", 4)
    assert settled.searcher.bracket_rungs == (2, 1)
    assert (settled.resources.priority, settled.resources.weight, settled.resources.shm_size) == (3, 2.0, "4GiB")
    assert settled.parallelism == SettledParallelism("pipeline", 2, split=("b.1",), schedule="1F1B")
    assert [(rule.pattern, rule.action) for rule in settled.log_policies] == [("ecc", LogAction.EXCLUDE_NODE)]
    assert settled.hang_detection == HangRule(seconds=9, enabled=True)
    assert settled.environment.environment_variables.cuda == ("A=1",)
    assert (settled.environment.registry_auth, settled.has_image) == ({"username": "u"}, True)
    assert [(mount.host_path, mount.read_only) for mount in settled.bind_mounts] == [("/a", True)]
    assert (settled.task, settled.task_kind) == (SettledTask(TaskKind.COMMAND, 3.0), TaskKind.COMMAND)


@pytest.mark.parametrize("text", [FULL_JSON, '{"resources":[]}', '{"resources":null}', "[]", "no JSON", ""])
def test_resources_are_read_alone_as_with_the_rest(text: str) -> None:
    assert settle(text, "resources").resources == settle(text).resources


def _names(record: type[Any], model: type[BaseModel], path: str = "") -> list[str]:
    """Returns the fields of a record, and of the records in it, that the model does not have."""
    lacking = []
    for name, annotation in get_type_hints(record).items():
        if name not in model.model_fields:
            lacking.append(f"{path}{name}")
            continue
        inner = [
            each for each in get_args(annotation) or (annotation,) if hasattr(each, "_fields") or is_dataclass(each)
        ]
        models = [model.model_fields[name].annotation, *get_args(model.model_fields[name].annotation)]
        inner_models = [each for each in models if isinstance(each, type) and issubclass(each, BaseModel)]
        if inner and inner_models and inner[0] is not SettledLength:
            lacking += _names(inner[0], inner_models[0], f"{path}{name}.")
    return lacking


def test_the_names_are_those_of_the_models() -> None:
    assert _names(Settled, ExperimentConfig) == []


def test_what_is_missing_odd_or_unknown_is_the_default() -> None:
    odd = {
        "name": 7,
        "labels": ["a", 7],
        "searcher": {"metric": None, "max_length": {"batches": 1, "epochs": 2}, "max_trials": True, "mode": "wild"},
        "resources": [],
        "hang_detection": {"seconds": "long", "factor": 2},
        "log_policies": [{"pattern": "p", "action": "sing"}],
        "task": None,
        "comes later": {"a": 1},
    }
    settled = settle(json.dumps(odd))
    assert settled._replace(hang_detection=HangRule(), log_policies=()) == Settled()
    assert settled.hang_detection == HangRule(factor=2.0)
    assert [(rule.pattern, rule.action) for rule in settled.log_policies] == [("p", None)]


def test_a_number_that_no_float_holds_is_the_default() -> None:
    assert settle(json.dumps({"name": "n", "resources": {"weight": 10**400}})) == Settled(name="n")


def test_shorter_and_older_forms_are_read() -> None:
    settled = settle_values(
        {
            "parallelism": "zero3",
            "searcher": {"max_length": 8},
            "environment": {"environment_variables": {"gpu": ["A=1"], "cpu": ["B=2"]}},
        }
    )
    assert settled.parallelism == SettledParallelism("zero3")
    assert settled.searcher.max_length == SettledLength("batches", 8)
    assert settled.environment.environment_variables == (("B=2",), ("A=1",))
    both = settle_values({"environment": {"environment_variables": ["A=1"]}}).environment.environment_variables
    assert both.cpu == both.cuda == ("A=1",)


def test_the_length_of_an_operation_is_max_length_before_max_time() -> None:
    timed = SettledSearcher(time_metric="tokens", max_time=9)
    assert timed.operation_length == SettledLength("tokens", 9)
    assert (timed.unit_name, timed.length) == ("tokens", 9)
    assert timed._replace(max_length=SettledLength("epochs", 2)).operation_length == SettledLength("epochs", 2)
    assert SettledSearcher().operation_length is None


def test_rungs_are_those_of_all_brackets_of_a_halving_search() -> None:
    halving = SettledSearcher("adaptive_asha", max_length=SettledLength("batches", 16), max_trials=8, divisor=2)
    assert halving.rungs == (2, 4, 8, 16)
    for section in (halving._replace(name="random"), halving._replace(divisor=1), halving._replace(max_trials=None)):
        assert not section.rungs
        assert not section.brackets


@pytest.mark.parametrize(
    "values",
    [
        {"max_length": SettledLength("batches", 0)},
        {"max_length": SettledLength("batches", 10**400)},
        {"max_trials": 0},
        {"max_rungs": 0},
        {"bracket_rungs": (2, 0)},
        {"divisor": math.nan},
        {"name": "async_halving", "num_rungs": 10_000},
    ],
)
def test_numbers_that_no_submit_takes_make_no_rungs(values: dict[str, Any]) -> None:
    halving = SettledSearcher("adaptive_asha", max_length=SettledLength("batches", 16), max_trials=8)
    assert halving.rungs
    assert halving._replace(**values).rungs == ()


def test_other_values_keep_the_rest_of_a_stored_configuration() -> None:
    text = '{"name":"ä","later":{"x":[1]},"resources":null}'
    changed = with_values(text, {("resources", "priority"): 3, ("name",): "b"})
    assert changed == '{"name":"b","later":{"x":[1]},"resources":{"priority":3}}'
    assert with_values(text, {("labels",): ["ö"]}) == text[:-1] + ',"labels":["ö"]}'
    # The same object shows the caller that nothing has changed.
    assert with_values(changed, {("resources", "priority"): 3}) is changed
    assert load_document(with_values(changed, {("resources", "max_slots"): None}))["resources"] == {
        "priority": 3,
        "max_slots": None,
    }
    assert with_values('{"resources":[1]}', {("resources", "priority"): 3}) == '{"resources":{"priority":3}}'
    with pytest.raises(ValueError, match="Expecting"):
        with_values("no JSON", {("name",): "b"})
