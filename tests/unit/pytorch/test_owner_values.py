"""A step gives all ranks the owner's values, and finds parameters that the trial has changed differently before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gangline.errors import GanglineError
from gangline.pytorch.parallel.shared import owner_values
from gangline.pytorch.parallel.shared.owner_values import OwnerValues, numbers_of, ratio

_OWNER, _OTHER = 0, 1


class _TwoRanks:
    """Rank 0 owns both parameters. The ranks follow one another, and a broadcast is kept for the second one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype = torch.float32) -> None:
        self._rank = _OWNER
        self._sent: list[torch.Tensor] = []
        monkeypatch.setattr(owner_values, "broadcast_tensors", self._broadcast)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: self._rank)
        self.parameters = [[torch.arange(1.0, 9.0).to(dtype), torch.ones(2, 3, dtype=dtype)] for _ in range(2)]
        self._values = [OwnerValues(lambda _: "Net.weight") for _ in range(2)]
        for values, parameters in zip(self._values, self.parameters, strict=True):
            values.note(parameters)

    def step(self) -> None:
        for values, parameters in zip(self._values, self.parameters, strict=True):
            values.before_step(parameters)
        for self._rank in (_OWNER, _OTHER):
            if self._rank == _OWNER:
                # The step itself.
                self.parameters[_OWNER][0].sub_(0.5)
            self._values[self._rank].send([(_OWNER, self.parameters[self._rank]), (_OTHER, [])])

    def _broadcast(self, tensors: Iterable[torch.Tensor], **_: Any) -> None:
        if self._rank == _OWNER:
            self._sent = [tensor.clone() for tensor in tensors]
            return
        for tensor, value in zip(tensors, self._sent, strict=True):
            tensor.copy_(value)


@contextmanager
def _refused() -> Iterator[None]:
    text = (
        "Net.weight was changed on rank 1 otherwise than on rank 0, whose value all ranks get in a step; change "
        "parameters in the same way on all ranks, and draw what changes them from the same seed"
    )
    with pytest.raises(GanglineError) as caught:
        yield
    assert (caught.value.code, caught.value.message) == ("training.drift", text)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_ranks_get_the_owners_values(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    ranks = _TwoRanks(monkeypatch, dtype)
    for _ in range(2):
        for parameters in ranks.parameters:
            parameters[0].clamp_(-3, 3)
        ranks.step()
        assert torch.equal(ranks.parameters[_OWNER][0], ranks.parameters[_OTHER][0])


@pytest.mark.parametrize("place", [0, 1])
def test_changes_that_differ_are_refused_behind_the_exchange(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    ranks = _TwoRanks(monkeypatch)
    ranks.step()
    for rank, parameters in enumerate(ranks.parameters):
        parameters[place].mul_(1 + 0.01 * rank)
    with _refused():
        ranks.step()
    assert torch.equal(ranks.parameters[_OWNER][place], ranks.parameters[_OTHER][place])
    ranks.step()


@pytest.mark.parametrize("rank", [_OWNER, _OTHER])
def test_a_change_of_one_rank_alone_is_none(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """The chief may put averaged weights into the model for a while, and then the own ones again."""
    ranks = _TwoRanks(monkeypatch)
    own = ranks.parameters[rank][0]
    kept = own.clone()
    own.zero_()
    own.copy_(kept)
    ranks.step()


def test_rounding_and_unknown_numbers_differ_by_nothing() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    own, near, far = (numbers_of(each).tolist() for each in (values, values * (1 + 1e-6), values * 1.01))
    assert ratio(own, near) < 1e-5
    assert ratio(own, far) > 5e-3
    assert ratio(own, [float("nan")] * 2) == ratio([0.0, 0.0], [0.0, 0.0]) == ratio([float("inf")] * 2, own) == 0.0


def test_complex_numbers_have_a_norm_too() -> None:
    assert numbers_of(torch.tensor([3 + 4j])).tolist() == [7.0, 5.0]
