"""Values that a command sets over a configuration: which key they replace, and how a mistake is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.config import fork_config, parse_config, parse_overrides
from gangline.config.merge import merge, with_overrides
from gangline.domain.experiment import ConfigLayer
from gangline.errors import GanglineError

_TEXT = """
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 16, lr: {type: log, minval: -4, maxval: -1}}
searcher: {name: random, metric: loss, max_trials: 8, max_length: {epochs: 3}}
resources: {slots_per_trial: 2}
"""


def test_values_are_yaml_and_the_last_of_a_key_counts() -> None:
    texts = ["a.b=1", "c=[1, x]", "d=1e-3", "e=a=b", "f=", "a.b=2"]
    assert parse_overrides(texts) == {"c": [1, "x"], "d": 0.001, "e": "a=b", "f": None, "a.b": 2}


@pytest.mark.parametrize("text", ["a.b", "=1", "a..b=1", ".a=1", "a =1", "a. b=1"])
def test_what_is_no_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(GanglineError) as failure:
        parse_overrides([text])
    assert failure.value.code == "config.override"
    assert repr(text) in failure.value.message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"resources.slots_per_trial": 4}, {"resources": {"slots_per_trial": 4}}),
        ({"resources": None}, {}),
        ({"data.url": "x"}, {"resources": {"slots_per_trial": 2}, "data": {"url": "x"}}),
        ({"resources.slots_per_trial.x": 1}, {"resources": {"slots_per_trial": {"x": 1}}}),
    ],
)
def test_a_key_is_set_added_or_removed(overrides: dict[str, Any], expected: dict[str, Any]) -> None:
    values = {"resources": {"slots_per_trial": 2}}
    assert with_overrides(values, overrides) == expected
    assert values == {"resources": {"slots_per_trial": 2}}, "the values themselves stay"


def test_a_length_is_replaced_as_a_whole_and_a_searcher_keeps_what_all_have() -> None:
    config, _ = parse_config(_TEXT, overrides={"searcher.max_length.batches": 20, "hyperparameters.lr": 0.1})
    assert config.searcher.max_length is not None
    assert config.searcher.max_length.batches == 20
    assert config.searcher.max_length.epochs is None
    assert config.hyperparameters["lr"] == 0.1
    single, _ = parse_config(_TEXT, overrides={"searcher.name": "single", "hyperparameters.lr": 0.1})
    assert (single.searcher.name, single.searcher.metric) == ("single", "loss")
    assert single.searcher.max_length is not None
    assert single.searcher.max_length.epochs == 3


def test_another_searcher_keeps_the_keys_that_it_has() -> None:
    searcher = {"name": "random", "metric": "loss", "max_trials": 4, "max_concurrent_trials": 2, "max_length": 8}
    kept = {**searcher, "name": "async_halving"}
    assert with_overrides({"searcher": searcher}, {"searcher.name": "async_halving"}) == {"searcher": kept}
    layer = ConfigLayer("template t", json.dumps({"searcher": searcher}))
    assert merge([layer], {"searcher": {"name": "async_halving"}}).values == {"searcher": kept}
    for name, dropped in (("grid", {"max_trials"}), ("single", {"max_trials", "max_concurrent_trials"})):
        shown = with_overrides({"searcher": searcher}, {"searcher.name": name})["searcher"]
        assert searcher.keys() - shown.keys() == dropped
    # A name that no searcher has is refused by its own message.
    assert with_overrides({"searcher": searcher}, {"searcher.name": "x"})["searcher"]["metric"] == "loss"


def test_a_mistake_names_the_option_and_not_a_line() -> None:
    with pytest.raises(GanglineError) as failure:
        parse_config(_TEXT, overrides={"resources.slots_per_trail": 4})
    assert failure.value.message.startswith("resources.slots_per_trail (--config): ")
    assert "slots_per_trial" in failure.value.message


def test_a_fork_has_the_stored_values_but_for_the_overrides() -> None:
    stored = parse_config(_TEXT)[0].model_dump_json()
    forked, _ = fork_config(stored, {"searcher.max_trials": 3, "labels": ["b"]})
    expected = json.loads(stored)
    expected["searcher"]["max_trials"] = 3
    expected["labels"] = ["b"]
    assert json.loads(forked.model_dump_json()) == expected
    single, _ = fork_config(stored, {"searcher.name": "single", "hyperparameters.lr": 0.5})
    assert single.searcher.name == "single"
    for key in ("resources.slots_per_trail", "searcher.max_lenght.epochs", "resources.slots_per_trial.x", "nothing"):
        with pytest.raises(GanglineError) as failure:
            fork_config(stored, {key: 2})
        assert failure.value.code.startswith("config.")
    assert failure.value.message == "nothing (--config): unknown key; gangline experiment schema prints all keys"
    with pytest.raises(GanglineError) as failure:
        fork_config(stored, {"resources.slots_per_trial": "many"})
    assert failure.value.code.startswith("config.")
