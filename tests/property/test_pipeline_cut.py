"""A pipeline trains what the model computes, or refuses it, whatever the model's forward does with its units."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from gangline.errors import GanglineError
from tests.support.examples import examples
from tests.support.parts_alone import cut, train_parts, train_whole

_WIDTH, _NUM_UNITS, _NUM_SAVED = 4, 6, 2
Step = tuple[str, int]


class _InPlace(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.relu(x, inplace=True))


# What the model's own code does with the value between two units, and another one that it has kept.
_CODE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "add_in_place": torch.Tensor.add_,
    "add_detached": lambda x, kept: x + kept.detach(),
    "relu_in_place": lambda x, kept: functional.relu(x, inplace=True),
    "gate": lambda x, kept: x * (kept > 0),
    "decide": lambda x, kept: 2 * x if kept.sum() > 0 else x,
    "number": lambda x, kept: x * torch.tensor(float(kept.detach().max()), dtype=x.dtype),
    "shape": lambda x, kept: x + torch.ones_like(kept),
}


class _Programmed(nn.Module):
    """Does what its program says, with units and with outputs that it has kept. act_place: where the module beside the
    lists is among the others, which may have parameters. stem: makes the first unit."""

    def __init__(self, act_place: int, has_norm: bool, stem: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        half = (_NUM_UNITS - 2) // 2
        modules: list[tuple[str, nn.Module]] = [
            ("stem", stem(_WIDTH, _WIDTH)),
            ("first", nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(half))),
            ("second", nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(half))),
            ("head", nn.Linear(_WIDTH, _WIDTH)),
        ]
        modules.insert(act_place, ("act", nn.LayerNorm(_WIDTH) if has_norm else nn.Tanh()))
        for name, module in modules:
            self.add_module(name, module)
        self.program: Sequence[Step] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: Any = self.first
        second: Any = self.second
        units: list[Any] = [self.stem, *first, *second, self.head]
        act: Any = self.act
        saved = [x] * _NUM_SAVED
        for word, number in self.program:
            if word == "unit":
                x = units[number](x)
            elif word == "act":
                x = act(x)
            elif word == "save":
                saved[number] = x
            elif word == "noise":
                saved[number] = torch.randn_like(x)
            else:
                x = _CODE[word](x, saved[number])
        return x


_OTHERS = st.one_of(
    st.just(("act", 0)),
    st.tuples(st.sampled_from(["save", "noise", *_CODE]), st.integers(0, _NUM_SAVED - 1)),
)


@st.composite
def _programs(draw: st.DrawFn) -> tuple[Step, ...]:
    """Units in their order, with other steps between them. Some are left out, run again or change places."""
    order = list(range(_NUM_UNITS))
    for change in draw(st.lists(st.sampled_from(["again", "leave out", "move"]), max_size=2)):
        place = draw(st.integers(0, len(order) - 1))
        unit = order[place] if change == "again" else order.pop(place)
        if change != "leave out":
            order.insert(draw(st.integers(0, len(order))), unit)
    steps: list[Step] = []
    for unit in order:
        steps += draw(st.lists(_OTHERS, max_size=2))
        steps.append(("unit", unit))
    return (*steps, *draw(st.lists(_OTHERS, max_size=2)))


_BORDERS = st.sets(st.integers(1, _NUM_UNITS - 1), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.pytorch.parallel.staged.unit_division.dist.get_rank", lambda: 0)


@settings(max_examples=examples(70), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    act_place=st.integers(0, 4),
    has_norm=st.booleans(),
    stem=st.sampled_from([nn.Linear, nn.Linear, _InPlace]),
    programs=st.lists(_programs(), min_size=1, max_size=2),
    borders=_BORDERS,
    is_evaluated=st.booleans(),
)
def test_parts_train_as_the_model_or_are_refused(
    *,
    act_place: int,
    has_norm: bool,
    stem: type[nn.Linear],
    programs: list[tuple[Step, ...]],
    borders: set[int],
    is_evaluated: bool,
) -> None:
    """The second program is a later batch of the same shape, in which the model does something else."""
    torch.manual_seed(1)
    model = _Programmed(act_place, has_norm, stem).double()
    whole, parts = copy.deepcopy(model), cut(model, borders)
    inputs = torch.randn(3, _WIDTH, dtype=torch.float64)
    for number, program in enumerate(programs):
        whole.program = model.program = program
        ours, theirs = inputs.clone(), inputs.clone()
        try:
            torch.manual_seed(number)
            wanted = [*train_whole(whole, theirs), theirs]
        except RuntimeError:
            # What the program changes in place is needed by the backward pass.
            assume(False)
        try:
            if is_evaluated:
                evaluated = inputs.clone()
                torch.testing.assert_close(
                    [parts.forward((evaluated,), {}, number=number), evaluated], [wanted[0], theirs]
                )
            found = [*train_parts(parts, model, ours, number=number), ours]
        except GanglineError:
            event("refused")
            return
        event("equal")
        torch.testing.assert_close(found, wanted)


@settings(max_examples=examples(70), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    act_place=st.integers(0, 4),
    has_norm=st.booleans(),
    numbers=st.lists(st.integers(0, 2), min_size=_NUM_UNITS + 1, max_size=_NUM_UNITS + 1),
    borders=_BORDERS,
)
def test_a_module_beside_the_lists_may_run_anywhere(
    act_place: int, has_norm: bool, numbers: list[int], borders: set[int]
) -> None:
    """numbers: how often it runs before each unit, and after the last one."""
    torch.manual_seed(1)
    model = _Programmed(act_place, has_norm)
    whole, parts = copy.deepcopy(model), cut(model, borders)
    steps: list[Step] = [("act", 0)] * numbers[-1]
    for unit, number in reversed(list(enumerate(numbers[:-1]))):
        steps = [("act", 0)] * number + [("unit", unit)] + steps
    whole.program = model.program = steps
    inputs = torch.randn(3, _WIDTH)
    torch.testing.assert_close(train_parts(parts, model, inputs), train_whole(whole, inputs))
