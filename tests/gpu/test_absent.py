"""A stage on a GPU draws random numbers for the parameters of other stages from the generator of that GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.absent_draws import DRAWS, check_draws


@pytest.mark.parametrize("name", list(DRAWS))
def test_each_stage_draws_as_one_process(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    check_draws(name, torch.device("cuda", 0))
