"""The table of strategies agrees with what configurations may say and with what ranks can make."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from gangline.config.optimization import Optimizations
from gangline.config.parallelism import Parallelism
from gangline.config.spread import slots_conflict
from gangline.config.strategy_table import BUILT, STRATEGIES, StrategyName, owners_of
from gangline.errors import GanglineError
from gangline.pytorch.parallel.choice import choose_strategy


def test_every_name_of_a_configuration_has_a_row() -> None:
    assert set(get_args(StrategyName)) == set(STRATEGIES)
    assert all(name == row.name for name, row in STRATEGIES.items())


def test_every_option_is_a_key_of_the_section_and_the_section_knows_no_other() -> None:
    options = {option for row in STRATEGIES.values() for option in row.options}
    assert options == set(Parallelism.model_fields) - {"strategy"}
    assert owners_of("blocks") == ("zero2", "zero3", "hsdp")


@pytest.mark.parametrize("name", sorted(set(BUILT) - {"none"}))
def test_what_is_built_can_be_made_from_its_fewest_slots_on(name: str) -> None:
    row = STRATEGIES[name]
    assert slots_conflict(name, row.fewest_slots, "there are") is None
    assert choose_strategy(name, max(2, row.fewest_slots), torch.device("cpu"), Optimizations()).name == name
    if row.fewest_slots > 1:
        assert slots_conflict(name, row.fewest_slots - 1, "there are") is not None


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(BUILT)))
def test_what_is_not_built_is_refused(name: str) -> None:
    with pytest.raises(GanglineError, match="is not built yet"):
        choose_strategy(name, 4, torch.device("cpu"), Optimizations())
