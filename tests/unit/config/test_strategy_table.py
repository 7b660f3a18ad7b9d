"""The table of strategies agrees with what configurations may say and with what ranks can make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch

from gangline.config import parse_config, split_batch
from gangline.config.elastic import slots_conflict, smaller_sizes
from gangline.config.optimization import Optimizations
from gangline.config.parallelism import NAMES, STRATEGIES, Parallelism, StrategyName, owners_of, ranks_per_replica
from gangline.errors import GanglineError
from gangline.pytorch.parallel.choice import choose_strategy


def test_every_name_of_a_configuration_has_a_row() -> None:
    assert set(get_args(StrategyName)) == set(STRATEGIES)
    assert all(name == row.name for name, row in STRATEGIES.items())


def test_every_option_is_a_key_of_the_section_and_the_section_knows_no_other() -> None:
    options = {option for row in STRATEGIES.values() for option in row.options}
    assert options == set(Parallelism.model_fields) - {"strategy", "activation_checkpointing"}
    assert owners_of("blocks") == ("zero2", "zero3", "hsdp")


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"none", "auto"}))
def test_what_is_built_can_be_made_from_its_fewest_slots_on(name: str) -> None:
    row = STRATEGIES[name]
    assert slots_conflict(name, row.fewest_slots, "there are") is None
    slots = max(2, row.fewest_slots)
    strategy = choose_strategy(name, slots, torch.device("cpu"), Optimizations())
    assert (strategy.name, strategy.replica_of(0, slots).count) == (
        name,
        slots // ranks_per_replica(name, slots),
    )
    if row.fewest_slots > 1:
        assert slots_conflict(name, row.fewest_slots - 1, "there are") is not None


def test_auto_takes_any_slots_and_every_batch_that_some_strategy_takes() -> None:
    assert all(slots_conflict("auto", slots, "there are") is None for slots in range(1, 9))
    assert smaller_sizes(4, 1, "auto") == (2, 1)
    assert parse_config(TRIAL.format(slots=4, batch=2) + "parallelism: auto\n")[1] == []
    with pytest.raises(GanglineError, match="1 is smaller than the 2 replicas of 2 slots"):
        parse_config(TRIAL.format(slots=4, batch=1) + "parallelism: {strategy: auto, stages: 2}\n")
    with pytest.raises(GanglineError, match="a pipeline has at least 2 stages"):
        parse_config(TRIAL.format(slots=4, batch=2) + "parallelism: {strategy: auto, stages: 1}\n")


def test_auto_has_every_option_of_the_others() -> None:
    others = {option for row in STRATEGIES.values() if row.family != "any" for option in row.options}
    assert set(STRATEGIES["auto"].options) == others


@pytest.fixture
def _pairs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ddp as a strategy whose replicas take two slots each."""
    monkeypatch.setitem(STRATEGIES, "ddp", replace(STRATEGIES["ddp"], ranks_per_replica=2))
    smaller_sizes.cache_clear()
    yield
    smaller_sizes.cache_clear()


TRIAL = """
entrypoint: model:Trial
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
resources: {{slots_per_trial: {slots}}}
hyperparameters: {{global_batch_size: {batch}}}
"""


@pytest.mark.usefixtures("_pairs")
def test_a_batch_is_divided_over_replicas_and_not_over_slots() -> None:
    assert parse_config(TRIAL.format(slots=4, batch=2))[1] == []
    warning = (
        "hyperparameters.global_batch_size: 5 is no multiple of 2 replicas of 2 slots; training uses 4 (2 on each "
        "replica)"
    )
    assert parse_config(TRIAL.format(slots=4, batch=5))[1] == [warning]
    assert split_batch(5, 4, ranks_per_replica=2).effective == 4
    with pytest.raises(GanglineError, match="1 is smaller than the 2 replicas of 2 slots of"):
        parse_config(TRIAL.format(slots=4, batch=1))


@pytest.mark.usefixtures("_pairs")
def test_slots_hold_whole_replicas() -> None:
    assert slots_conflict("ddp", 4, "there are") is None
    with pytest.raises(GanglineError, match=r"ddp trains each replica on 2 slots, but .* 5, .* use 6 slots"):
        parse_config(TRIAL.format(slots=5, batch=8))
    with pytest.raises(GanglineError, match="use 2 slots"):
        parse_config(TRIAL.format(slots=1, batch=8))


@pytest.mark.usefixtures("_pairs")
def test_smaller_sizes_hold_whole_replicas_and_divide_the_replicas_of_the_full_size() -> None:
    assert smaller_sizes(12, 1, "ddp") == (6, 4, 2)
    assert smaller_sizes(2, 1, "ddp") == ()
