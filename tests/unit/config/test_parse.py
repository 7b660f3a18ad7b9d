"""The result of parsing a valid configuration: Determined's defaults, its short forms, and the cluster's JSON."""

from __future__ import annotations

import json
import random

import pytest

from gangline.config import (
    ExperimentConfig,
    check_config,
    check_patterns,
    export_schema,
    parse_config,
    sample_hyperparameters,
    split_batch,
)
from gangline.config.failure import LogPolicy
from gangline.domain.state import SlotKind
from gangline.errors import GanglineError

MINIMAL = "entrypoint: model_def:Trial\nsearcher: {name: single, metric: loss, max_length: 100}\n"


def parse(text: str) -> ExperimentConfig:
    return parse_config(text)[0]


def test_defaults_are_those_of_determined() -> None:
    config = parse(MINIMAL)
    assert config.name == "model_def:Trial"
    assert config.scheduling_unit == 100
    assert config.max_restarts == 5
    assert config.resources.slots_per_trial == 1
    assert config.resources.priority is None
    assert config.searcher.smaller_is_better
    assert config.searcher.max_concurrent_trials == 16
    assert config.checkpoint_policy == "best"
    assert config.min_validation_period.batches == 0
    assert config.optimizations.aggregation_frequency == 1
    assert config.optimizations.average_aggregated_gradients
    assert config.parallelism.strategy == "ddp"


def test_null_stands_for_the_default() -> None:
    assert parse(MINIMAL + "max_restarts: null\nresources: {slots_per_trial: null}\nlabels: null\n") == parse(MINIMAL)


def test_bare_number_of_a_length_means_batches() -> None:
    assert str(parse(MINIMAL).searcher.max_length) == "100 batches"


def test_number_with_exponent_is_a_number() -> None:
    config = parse(MINIMAL + "hyperparameters: {lr: 1e-3, decay: 5E-4, momentum: .9, name: 1e}\n")
    assert config.hyperparameters == {"lr": 0.001, "decay": 0.0005, "momentum": 0.9, "name": "1e"}


def test_constant_may_be_null_or_a_list() -> None:
    config = parse(MINIMAL + "hyperparameters: {a: null, b: [1, x], c: {type: const, val: null}}\n")
    assert sample_hyperparameters(config.hyperparameters, random.Random(0)) == {"a": None, "b": [1, "x"], "c": None}


def test_a_trial_is_named_by_its_id_or_by_determined_s_number() -> None:
    for written in ('"7.10"', "700010"):
        searcher = f"searcher: {{name: single, metric: loss, max_length: {{batches: 1}}, source_trial_id: {written}}}\n"
        assert parse(f"name: n\nentrypoint: python3 t.py\n{searcher}").searcher.source_trial_id == "7.10"


def test_a_pair_of_escapes_is_one_character_as_in_json() -> None:
    face = "\N{GRINNING FACE}"
    searcher = {"name": "single", "metric": "loss"}
    values = {"name": face, "entrypoint": "true", "labels": [f"a{face}b{face}"], "data": {face: 1}}
    text = json.dumps({**values, "searcher": searcher})
    assert face not in text
    config = parse(text)
    assert (config.name, config.labels, config.data) == (face, [f"a{face}b{face}"], {face: 1})


def test_environment_variables_for_all_kinds_of_slots_or_for_one() -> None:
    both = parse(MINIMAL + "environment: {environment_variables: [A=1, B=x=y]}\n").environment.environment_variables
    assert both.of(SlotKind.CPU) == both.of(SlotKind.GPU) == {"A": "1", "B": "x=y"}
    gpu_only = parse(
        MINIMAL + "environment: {environment_variables: {cuda: [A=1]}}\n"
    ).environment.environment_variables
    assert (gpu_only.of(SlotKind.CPU), gpu_only.of(SlotKind.GPU)) == ({}, {"A": "1"})
    earlier = parse(MINIMAL + "environment: {environment_variables: {gpu: [A=1]}}\n").environment
    assert earlier.environment_variables == gpu_only, "the name of cuda before Determined 0.17.6"


def test_script_needs_no_length() -> None:
    config = parse("entrypoint: [python3, train.py]\nsearcher: {name: single, metric: loss}\nname: script\n")
    assert config.searcher.max_length is None


def test_stored_json_of_a_newer_version_is_read() -> None:
    stored = parse(MINIMAL).model_dump_json().replace('"name":', '"invented_later":1,"name":', 1)
    assert ExperimentConfig.model_validate_json(stored) == parse(MINIMAL)


def test_stored_json_with_a_pattern_that_only_python_knows_is_read_but_not_taken_again() -> None:
    policy = {"pattern": r"(?<!no )error"}
    stored = parse(MINIMAL).model_copy(update={"log_policies": [LogPolicy.model_validate(policy)]}).model_dump_json()
    assert ExperimentConfig.model_validate_json(stored).log_policies[0].pattern == policy["pattern"]
    with pytest.raises(GanglineError, match=r"^log_policies\[0\]\.pattern: '\(\?<!no \)error' is no pattern of RE2: "):
        check_patterns(check_config(stored))


def test_determined_keys_of_every_section_are_known() -> None:
    text = MINIMAL + (
        "bind_mounts: [{host_path: /a, container_path: /b}]\n"
        "checkpoint_storage: {type: shared_fs, host_path: /c, storage_path: d, save_trial_best: 2}\n"
        "log_policies: [{pattern: '.*oom.*', action: cancel_retries}, {pattern: x, action: {type: exclude_node}}]\n"
        "profiling: {enabled: true}\nretention_policy: {log_retention_days: -1}\n"
        "environment: {image: {cpu: a, cuda: b}, ports: {x: 1}}\n"
        "optimizations: {aggregation_frequency: 2, mixed_precision: O1, tensor_fusion_cycle_time: 5}\n"
        "reproducibility: {experiment_seed: 7}\nworkspace: w\nproject: p\nperform_initial_validation: true\n"
    )
    config = parse(text)
    assert config.optimizations.aggregation_frequency == 2
    assert config.reproducibility.experiment_seed == 7


def test_same_seed_draws_the_same_values() -> None:
    ranges = {
        "a": {"type": "int", "minval": 1, "maxval": 9},
        "b": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
        "c": {"d": {"type": "categorical", "vals": ["x", "y"]}, "e": {"type": "double", "minval": 0.5, "maxval": 1}},
    }
    first, second = (sample_hyperparameters(ranges, random.Random(3)) for _ in range(2))
    assert first == second
    assert 1 <= first["a"] <= 9
    assert 1e-4 <= first["b"] <= 1e-1
    assert 0.5 <= first["c"]["e"] <= 1


def test_batch_smaller_than_slots_is_refused() -> None:
    with pytest.raises(GanglineError) as caught:
        split_batch(3, 4)
    assert caught.value.message == (
        "hyperparameters.global_batch_size: 3 is smaller than the 4 slots of resources.slots_per_trial; "
        "use at least 4, or fewer slots"
    )


def test_schema_names_every_section_and_the_short_forms() -> None:
    schema = export_schema()
    assert set(schema["properties"]) == set(ExperimentConfig.model_fields)
    assert schema["additionalProperties"] is False
    assert {"type": "integer", "minimum": 0, "description": "batches"} in schema["$defs"]["Length"]["anyOf"]
