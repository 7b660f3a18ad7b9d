"""The benchmark of the largest GPT: its search, and both kinds of attempts in a small size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import largest_gpt
from benchmarks.largest_gpt import Outcome, Recomputed, Size, most_blocks, search

SMALL = Size(16, 2, 2, length=8, words=32)


@pytest.mark.parametrize("largest", [0, 1, 5, 11, 12])
def test_the_search_ends_at_the_largest_number_that_trains(largest: int) -> None:
    tried = list[int]()

    def attempt(blocks: int) -> Outcome:
        tried.append(blocks)
        return Outcome("out of memory" if blocks > largest else "", seconds=1.0)

    found, outcomes = search(attempt, 12, 3)
    assert found == largest
    assert len(outcomes) == (3 if largest else 0)
    assert len(tried) <= 5 + 2 * 2


def test_runs_that_differ_are_an_error() -> None:
    answers = iter([Outcome(), Outcome("out of memory"), Outcome("out of memory"), Outcome("out of memory")])
    with pytest.raises(AssertionError, match="another number"):
        search(lambda blocks: next(answers), 3, 2)


def test_no_side_trains_more_blocks_than_have_room() -> None:
    with torch.device("meta"):
        sizes = [sum(value.numel() for value in Size(128, blocks, 1).make().parameters()) for blocks in (3, 4)]
    assert [most_blocks(128, 16 * (size + 1)) for size in sizes] == [3, 4]


def test_the_model_with_checkpoints_computes_the_same() -> None:
    model, (text, _) = SMALL.make(), SMALL.records()
    plain = model(text)
    model.blocks = nn.ModuleList(map(Recomputed, model.blocks))
    assert torch.equal(model(text), plain)


def test_auto_trains_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_gpt, "Size", lambda **sizes: Size(**sizes, length=8, words=32))
    found = largest_gpt.try_side("auto", SMALL)
    assert not found.problem
    assert found.row is not None
    assert found.row.name == "none"
    assert found.seconds > 0
    assert found.table[0].startswith("parallelism: auto chose none for 1 slot")
