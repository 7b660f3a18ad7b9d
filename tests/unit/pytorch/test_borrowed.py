"""Parameters that a part of a pipeline uses outside of their module: their values, gradients and steps on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import nn

from gangline.pytorch.parallel.staged import borrowed as borrowed_module
from gangline.pytorch.parallel.staged.borrowed import Borrowed


class Replica:
    """The replica and the holding of the second of its two ranks. shared: the source of each exchange. foreign: the
    parameter that the first rank holds."""

    place = 1
    inside = None

    def __init__(self, foreign: nn.Parameter) -> None:
        self.foreign = foreign
        self.shared: list[int] = []
        self.taken: dict[int, torch.Tensor] = {}
        self.dropped: list[nn.Parameter] = []

    def share(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        self.shared.append(source)
        for tensor in tensors:
            tensor.fill_(7.0)

    def holders(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return (0,) if parameter is self.foreign else (1,)

    def take(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        self.taken[id(parameter)] = value

    def drop(self, parameter: nn.Parameter) -> None:
        self.dropped.append(parameter)


def test_only_the_holder_keeps_the_gradient_of_a_borrowed_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[list[nn.Parameter]] = []
    monkeypatch.setattr(borrowed_module, "join_gradients", lambda chosen, group, is_mean: joined.append([*chosen]))
    foreign, own, frozen = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    replica: Any = Replica(foreign)
    borrowed = Borrowed(replica, torch.device("cpu"))
    for parameter in (foreign, own, frozen):
        borrowed.take(parameter, replica)
        parameter.grad = torch.ones(2)
    assert set(borrowed.ids) == {id(foreign), id(own), id(frozen)}
    replica.shared.clear()
    borrowed.join_gradients([foreign, own, frozen, nn.Parameter(torch.ones(1))], replica)
    assert [list(map(id, each)) for each in joined] == [[id(foreign), id(own)]]
    assert (foreign.grad, own.grad is not None) == (None, True)
    borrowed.send([foreign, own], replica)
    assert replica.shared == [0, 1]
    borrowed.give_back(replica)
    assert (replica.dropped, [*borrowed.ids]) == ([foreign], [])


def test_a_freed_parameter_gets_its_value_on_this_rank() -> None:
    freed = nn.Parameter(torch.empty(2, device="meta"))
    replica = Replica(freed)
    Borrowed(cast(Any, replica), torch.device("cpu")).take(freed, cast(Any, replica))
    assert replica.taken[id(freed)].tolist() == [7.0, 7.0]
    assert replica.shared == [0]
