"""Parameters of other stages draw random numbers as one process does, and their values are refused in one line."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.absent import Absent
from gangline.pytorch.parallel.staged.holding import Holding
from gangline.pytorch.parallel.staged.unit import find_units
from tests.support.absent_draws import DRAWS, check_draws, make_stage, make_whole


@pytest.mark.parametrize("name", list(DRAWS))
def test_each_stage_draws_as_one_process(name: str) -> None:
    check_draws(name, torch.device("cpu"))


def _pair() -> tuple[nn.Parameter, nn.Parameter]:
    """A parameter of the stage, and one of another stage with the same shape."""
    model, _ = make_stage(0)
    own, absent = model[1].bias, model[2].bias  # type: ignore[index]  # torch types modules loosely
    with torch.no_grad():
        absent = absent[:3]
    return own, absent


_READS: dict[str, Callable[[nn.Parameter, nn.Parameter], Any]] = {
    "a number": lambda own, absent: absent.norm().item(),
    "a decision": lambda own, absent: bool((absent > 0).any()),
    "a list": lambda own, absent: absent.tolist(),
    "an array": lambda own, absent: absent.detach().numpy(),
    "a comparison": torch.equal,
    "a change of an own one": lambda own, absent: own.data.add_(absent, alpha=0.1),
    "a copy into an own one": lambda own, absent: own.data.copy_(absent),
    "a sum": lambda own, absent: torch.zeros(()).add_(absent.sum()),
    "a row of an own one": lambda own, absent: own.data.__setitem__(0, absent[0]),
    "an output": lambda own, absent: torch.add(own.data, absent.data, out=torch.empty(3)),
    "a value of both": lambda own, absent: float((own + absent).sum()),
    "places": lambda own, absent: absent.nonzero(),
    "a file": lambda own, absent: pickle.dumps(absent.detach()),
    "draws by value": lambda own, absent: torch.poisson(absent),
}


@pytest.mark.parametrize("name", list(_READS))
def test_a_value_of_another_stage_is_refused(name: str) -> None:
    own, absent = _pair()
    before = own.detach().clone()
    with pytest.raises(GanglineError) as caught:
        _READS[name](own, absent)
    assert caught.value.code == "parallelism.absent_value"
    assert caught.value.message.startswith("the trial needs values of 2.bias, which another stage of the pipeline has")
    assert torch.equal(own, before)


def test_gradients_by_a_parameter_of_another_stage_are_refused() -> None:
    own, absent = _pair()
    with pytest.raises(GanglineError, match=r"the trial makes gradients of 2\.bias without context\.backward"):
        torch.autograd.grad(own.sum(), [own, absent])
    with pytest.raises(GanglineError, match=r"the trial makes gradients of 2\.bias without context\.backward"):
        absent.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def test_a_parameter_of_another_stage_looks_like_one_of_thismake_stage() -> None:
    model, _ = make_stage(0)
    absent = model[3].weight  # type: ignore[index]  # torch types modules loosely
    assert isinstance(absent, nn.Parameter)
    assert (absent.shape, absent.dtype, absent.device) == ((5, 7), torch.float32, torch.device("cpu"))
    assert absent.is_cpu
    assert not absent.is_cuda
    assert absent.to("cpu").shape == absent.double().shape == absent.cpu().shape == (5, 7)
    assert absent.to(torch.float64).dtype == torch.float64
    assert torch.zeros(2).double().to(absent).dtype == torch.float32
    assert isinstance(copy.deepcopy(absent), nn.Parameter)
    repr(absent)
    absent.requires_grad_(False)
    assert not absent.requires_grad
    absent.grad = torch.ones(5, 7)
    assert absent.grad is not None
    absent.grad = None
    assert absent.grad is None
    assert {absent: 1}[absent] == 1


def test_whole_values_are_loaded_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    whole = make_whole()
    for rank in range(2):
        model, _ = make_stage(rank)
        model.load_state_dict({name: value + 1 for name, value in whole.state_dict().items()})
        for parameter, value in zip(model.parameters(), whole.parameters(), strict=True):
            assert parameter.is_meta or torch.equal(parameter, value + 1)
    assert not recwarn.list


def _is_absent(parameter: Any) -> bool:
    return isinstance(parameter, Absent)


def test_attributes_of_parameters_stay_when_values_go_and_return() -> None:
    model = make_whole()
    for parameter in model.parameters():
        parameter.kind = "plain"  # type: ignore[attr-defined]  # a user's own
    holding = Holding(model, find_units(model), [0, 0, 1, 1], 2)
    holding.give_up(0)
    weight: Any = model[3].weight  # type: ignore[index]  # torch types modules loosely
    assert _is_absent(weight)
    assert all(parameter.kind == "plain" for parameter in model.parameters())  # type: ignore[attr-defined]  # as above
    holding.take(weight, torch.ones(5, 7))
    assert vars(weight) == {"kind": "plain"}
    assert not _is_absent(weight)
    assert float(weight.detach().sum()) == 35.0
    holding.drop(weight)
    assert _is_absent(weight)


def test_a_parameter_that_was_added_later_is_refused() -> None:
    _, holding = make_stage(0)
    with pytest.raises(GanglineError, match=r"a parameter of shape \[2\] was not in the model when it was wrapped"):
        holding.holders(nn.Parameter(torch.zeros(2)))
