"""A whole parameter whose values were gathered in half precision: what operations get, and what is noted."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gangline.pytorch.parallel.divided.half_parameter import Values, WholeParameter, gathered_of, was_changed

_VALUES = torch.linspace(-1, 1, 12).view(3, 4) + 1e-3
_HALF = torch.bfloat16


class _Source:
    """The values of a parameter, and how often all ranks have gathered them in its own type."""

    def __init__(self, half: torch.dtype | None = _HALF) -> None:
        self.uses: set[torch.dtype | None] = set()
        self.num_fetched = 0
        gathered = _VALUES.clone() if half is None else _VALUES.to(half)
        self.values = Values(gathered, half, self._fetch, self.uses)
        self.parameter = WholeParameter(self.values, torch.empty(3, 4, requires_grad=True))

    def _fetch(self) -> torch.Tensor:
        self.num_fetched += 1
        return _VALUES.clone()


def _product(parameter: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=_HALF):
        return functional.linear(torch.ones(2, 4), parameter)


def test_it_is_a_parameter_of_its_own_type() -> None:
    parameter = _Source().parameter
    assert isinstance(parameter, nn.Parameter)
    assert (parameter.dtype, parameter.shape, parameter.requires_grad) == (torch.float32, (3, 4), True)
    assert parameter.detach().dtype is torch.float32


def test_autocast_gets_the_gathered_values_and_the_gradient_has_the_own_type() -> None:
    source, plain = _Source(), nn.Parameter(_VALUES.clone())
    for parameter in (source.parameter, plain):
        _product(parameter).float().square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert torch.equal(_product(source.parameter), _product(plain))
    assert source.parameter.grad is not None
    assert plain.grad is not None
    assert source.parameter.grad.dtype is torch.float32
    assert torch.equal(source.parameter.grad, plain.grad)
    assert (source.uses, source.num_fetched) == ({_HALF}, 0)


def test_other_operations_get_the_own_values_which_are_gathered_once() -> None:
    source = _Source()
    assert torch.equal(source.parameter * 2, _VALUES * 2)
    assert torch.equal(source.parameter.sum(), _VALUES.sum())
    assert torch.equal(source.parameter.to(torch.float16), _VALUES.to(torch.float16))
    assert (source.uses, source.num_fetched) == ({None}, 1)
    source.values.free()
    assert torch.equal(torch.stack([source.parameter, source.parameter])[1], _VALUES)
    assert source.num_fetched == 2


def test_the_first_pass_shows_how_a_parameter_is_used() -> None:
    source = _Source(half=None)
    _product(source.parameter)
    assert source.uses == {_HALF}
    assert torch.equal(functional.embedding(torch.tensor([2]), source.parameter)[0], _VALUES[2])
    assert (source.uses, source.num_fetched) == ({_HALF, None}, 0)
    assert gathered_of(source.parameter) is source.values.gathered


def test_a_change_in_place_is_noted_until_the_values_are_freed() -> None:
    source = _Source()
    assert not was_changed(source.parameter)
    with torch.no_grad():
        source.parameter.data.clamp_(min=0)
    assert was_changed(source.parameter)
    source.values.free()
    assert not was_changed(source.parameter)
    copied = source.parameter.to(_HALF)
    assert not was_changed(source.parameter)
    copied.mul_(2)
    assert was_changed(source.parameter), "the copy has the memory of the values"
    source.values.free()
    with torch.no_grad():
        source.parameter.mul_(2)
    assert was_changed(source.parameter)
