"""Configurations made at random: what is accepted survives the way through the cluster unchanged, what is not gives
one line, and a misspelled key is always answered with the right one."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gangline.config import ExperimentConfig, parse_config, sample_hyperparameters, split_batch
from gangline.config.experiment import ExperimentConfig as Model
from gangline.domain.settled.reading import settle, settle_values
from gangline.errors import GanglineError

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8).filter(lambda name: name != "type")
SCALARS = (
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-10, 10) | st.text(string.printable, max_size=8)
)
LENGTHS = st.integers(1, 1000) | st.fixed_dictionaries({}).flatmap(
    lambda _: st.tuples(st.sampled_from(["batches", "records", "epochs"]), st.integers(1, 1000)).map(
        lambda p: {p[0]: p[1]}
    )
)
RANGES = st.one_of(
    st.builds(
        lambda low, width: {"type": "int", "minval": low, "maxval": low + width}, st.integers(-9, 9), st.integers(1, 9)
    ),
    st.builds(
        lambda low, width: {"type": "double", "minval": low, "maxval": low + width}, st.floats(-9, 9), st.floats(0.5, 9)
    ),
    st.builds(lambda low: {"type": "log", "minval": low, "maxval": low + 2, "base": 10}, st.integers(-5, 5)),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda vals: {"type": "categorical", "vals": vals}),
    SCALARS.map(lambda value: {"type": "const", "val": value}),
)
HYPERPARAMETERS = st.recursive(
    SCALARS | RANGES, lambda children: st.dictionaries(NAMES, children, max_size=3), max_leaves=8
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    slots = draw(st.integers(1, 16))
    hyperparameters = draw(st.dictionaries(NAMES, HYPERPARAMETERS, max_size=4))
    hyperparameters["global_batch_size"] = draw(st.integers(slots, 512))
    return {
        "name": draw(NAMES),
        "entrypoint": draw(st.sampled_from(["model_def:Trial", "python3 train.py"])),
        "hyperparameters": hyperparameters,
        "searcher": {"name": "single", "metric": draw(NAMES), "max_length": draw(LENGTHS)},
        "resources": {"slots_per_trial": slots, "priority": draw(st.none() | st.integers(1, 99))},
        "min_validation_period": draw(LENGTHS),
        "max_restarts": draw(st.integers(0, 10)),
        "labels": draw(st.lists(NAMES, max_size=3)),
    }


@given(configurations())
def test_what_is_accepted_survives_the_cluster(values: dict[str, Any]) -> None:
    config, warnings = parse_config(yaml.safe_dump(values))
    assert ExperimentConfig.model_validate_json(config.model_dump_json()) == config
    assert parse_config(config.model_dump_json()) == (config, warnings)


@given(configurations())
def test_json_and_yaml_mean_the_same(values: dict[str, Any]) -> None:
    assert parse_config(json.dumps(values))[0] == parse_config(yaml.safe_dump(values))[0]


@given(configurations())
def test_a_model_and_its_text_are_settled_alike(values: dict[str, Any]) -> None:
    config, _ = parse_config(yaml.safe_dump(values))
    assert settle(config.model_dump_json()) == settle_values(config)


@given(configurations(), st.integers(0, 2**31))
def test_every_hyperparameter_gets_a_value(values: dict[str, Any], seed: int) -> None:
    config, _ = parse_config(yaml.safe_dump(values))
    drawn = sample_hyperparameters(config.hyperparameters, random.Random(seed))
    assert drawn.keys() == values["hyperparameters"].keys()
    assert drawn == sample_hyperparameters(config.hyperparameters, random.Random(seed))


@given(configurations(), st.sampled_from(sorted(Model.model_fields)), st.data())
def test_misspelled_key_is_answered_with_the_right_one(values: dict[str, Any], key: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(key) - 1))
    misspelled = key[:position] + "x" + key[position:]
    with pytest.raises(GanglineError) as caught:
        parse_config(yaml.safe_dump({**values, misspelled: 1}))
    assert caught.value.code == "config.unknown_key"
    assert caught.value.message.endswith(f"unknown key; did you mean {key}?")


@given(
    st.text(max_size=200) | st.recursive(SCALARS, lambda c: st.lists(c) | st.dictionaries(NAMES, c)).map(yaml.safe_dump)
)
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    assert caught.value.code.startswith("config.")
    assert "\n" not in caught.value.message


@given(st.integers(1, 10_000), st.integers(1, 512))
def test_slots_share_a_batch_equally(batch: int, slots: int) -> None:
    if batch < slots:
        with pytest.raises(GanglineError, match="use at least"):
            split_batch(batch, slots)
        return
    split = split_batch(batch, slots)
    assert split.effective == split.per_replica * slots
    assert batch - slots < split.effective <= batch
    assert (split.warning is None) == (batch % slots == 0)
