"""Microbatches: a batch is cut by its records, and results of the parts are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.microbatch import cut_batch, join_results


def test_batches_are_cut_by_records() -> None:
    names, pair = ["a", "b", "c", "d"], (torch.ones(4, 2), 5)
    batch = {"x": torch.arange(4), "names": names, "scale": torch.tensor(2.0), "pair": pair}
    first, second = cut_batch(batch, 2, 4)
    assert first["x"].tolist() + second["x"].tolist() == [0, 1, 2, 3]
    assert (first["names"], second["names"]) == (["a", "b"], ["c", "d"])
    assert (first["scale"].item(), tuple(second["pair"][0].shape), second["pair"][1]) == (2.0, (2, 2), 5)


def test_a_batch_is_cut_by_the_records_that_the_trial_counts() -> None:
    weights, inputs = torch.rand(3), torch.rand(4, 5)
    (first, own), (second, _) = ((part[1], part[0]) for part in cut_batch((weights, inputs), 2, 4))
    assert torch.equal(torch.cat((first, second)), inputs)
    assert torch.equal(own, weights)


def test_records_in_another_dimension_are_refused() -> None:
    with pytest.raises(GanglineError) as caught:
        cut_batch({"x": [torch.rand(7, 4, 2)], "y": torch.rand(4)}, 2, 4)
    assert caught.value.message == (
        "pipeline cuts a batch along the first dimension, but the batch of 4 records has a tensor of shape [7, 4, 2], "
        "which may have its records in dimension 1; put the records first and turn the tensor in the model, or use ddp"
    )


def test_a_tensor_that_all_records_share_is_left_whole() -> None:
    inputs, mask = torch.rand(4, 3), torch.rand(1, 4)
    first, second = cut_batch({"inputs": inputs, "mask": mask}, 2, 4)
    assert (first["mask"], second["mask"]) == (mask, mask)
    assert torch.equal(torch.cat((first["inputs"], second["inputs"])), inputs)


_UNCUT = "but no tensor or list of the batch has 12 entries in its first dimension, where pipeline cuts it: they have "


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.rand(4, 3), f"get_batch_length returns 12, {_UNCUT}4; return the number of records, or use ddp"),
        ({"x": [torch.rand(4), np.zeros(7)], "y": 5}, f"get_batch_length returns 12, {_UNCUT}4, 7; return"),
        ((["a", "b"], None), f"get_batch_length returns 12, {_UNCUT}2; return"),
        (
            {"graph": object(), "number": 3},
            "pipeline cannot cut a batch of 12 records of type object; let the data loader return a tensor, or a "
            "dictionary, list or tuple of tensors, or use ddp",
        ),
    ],
    ids=["a tensor", "a nest", "texts", "an object"],
)
def test_a_batch_that_would_stay_whole_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        cut_batch(batch, 2, 12)
    assert caught.value.message.startswith(message)
    assert cut_batch(batch, 1, 12) == [batch]


def test_a_batch_without_records_goes_into_all_parts() -> None:
    batch = {"seed": 5, "scale": torch.tensor(2.0), "name": None}
    assert cut_batch(batch, 2, 12) == [batch, batch]


def test_results_are_joined_to_their_means() -> None:
    joined = join_results([{"loss": torch.tensor(1.0), "hits": 2}, {"loss": torch.tensor(3.0), "hits": 5}])
    assert (float(joined["loss"]), joined["hits"]) == (2.0, 3.5)
    assert join_results([None, None]) is None
    with pytest.raises(GanglineError, match="other metrics for one microbatch"):
        join_results([{"loss": 1.0}, {"error": 1.0}])
