"""State that parts of a model share is refused where their copies would drift apart, and otherwise trains as in the
whole model."""

from __future__ import annotations

import copy
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from tests.support.parts_alone import cut, train_parts, train_whole
from tests.support.parts_apart import train_apart
from tests.support.run_chain import WIDTH, RunChain, run_plain

pytestmark = pytest.mark.usefixtures("one_rank")

_BATCHES = [torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(place)) for place in range(3)]


class _Unit(nn.Linear):
    """Uses and changes what `shared` is. use: returns a factor."""

    def __init__(self, shared: Any, use: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.shared = shared
        self.use = use

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(input).tanh()
        scaled: torch.Tensor = y * self.use(self.shared, y)
        return scaled


def _chain(make: Callable[[], Any], use: Callable[[Any, torch.Tensor], Any], run: Any = run_plain) -> RunChain:
    torch.manual_seed(1)
    shared = make()
    return RunChain(run, lambda: _Unit(shared, use))


def _count(shared: Any, _: torch.Tensor) -> Any:
    shared["calls"] += 1
    return shared["calls"]


def _add_to_list(shared: Any, _: torch.Tensor) -> Any:
    shared.append(1)
    return len(shared)


def _count_in_object(shared: Any, _: torch.Tensor) -> Any:
    shared.calls += 1
    return shared.calls


def _count_in_tensor(shared: Any, _: torch.Tensor) -> Any:
    shared["calls"].add_(1)
    return float(shared["calls"])


_SHARED: dict[str, tuple[Callable[[], Any], Any]] = {
    "dictionary": (lambda: {"calls": 0}, _count),
    "list": (list, _add_to_list),
    "object": (lambda: types.SimpleNamespace(calls=0), _count_in_object),
    "tensor": (lambda: {"calls": torch.zeros(())}, _count_in_tensor),
    "array": (lambda: np.zeros(1), lambda shared, _: float(np.add(shared, 1, out=shared)[0])),
    "generator": (
        lambda: {"own": torch.Generator().manual_seed(1)},
        lambda shared, _: torch.rand((), generator=shared["own"]),
    ),
    "python": (lambda: random.Random(1), lambda shared, _: shared.random()),
    "numpy": (lambda: np.random.RandomState(1), lambda shared, _: float(shared.rand())),
}


@pytest.mark.parametrize("name", _SHARED)
def test_what_units_of_several_parts_change_is_refused(name: str) -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward changes blocks\.0\.shared\S*, which blocks\.0 and blocks\.1 have in common, and each "
        r"stage has a copy of its own; give each of them its own, put them into one stage with parallelism\.split, or "
        r"use ddp$",
    ):
        train_apart(_chain(*_SHARED[name]), 2, _BATCHES)
    # The way out.
    whole, model = _chain(*_SHARED[name]), _chain(*_SHARED[name])
    parts = cut(model, {4})
    for batch in _BATCHES:
        torch.testing.assert_close(train_parts(parts, model, batch), train_whole(whole, batch))


def _cache(shared: Any, y: torch.Tensor) -> Any:
    shared["size"] = y.shape[0]
    return shared.setdefault("table", torch.full((WIDTH,), 2.0))


def _look(shared: Any, y: torch.Tensor) -> Any:
    shared.append(float(y.detach().norm()))
    shared.append(y.detach())
    return 1


@pytest.mark.parametrize(("make", "use"), [(dict, _cache), (list, _look)])
def test_what_stays_the_same_or_is_only_looked_at_may_be_shared(make: Any, use: Any) -> None:
    _check_apart(_chain(make, use))


def _check_apart(model: RunChain, border: int = 2) -> None:
    whole = copy.deepcopy(model)
    *outputs, gradients = train_apart(model, border, _BATCHES)
    for batch, output in zip(_BATCHES, outputs, strict=True):
        wanted = whole(batch)
        wanted.square().sum().backward()
        torch.testing.assert_close(output, [wanted.detach()])
    torch.testing.assert_close(gradients, [each.grad for each in whole.parameters()])


def _counting(place: str) -> Callable[[Any, torch.Tensor], Any]:
    def run(model: Any, x: torch.Tensor) -> Any:
        model.calls += place == "front"
        x = model.stem(x) * (1 + model.calls)
        for number, block in enumerate(model.blocks):
            model.calls += place == "between" and number == 2
            x = block(x)
        model.calls += place == "behind"
        return model.head(x)

    return run


def _counter(place: str) -> RunChain:
    torch.manual_seed(1)
    model = RunChain(_counting(place))
    model.calls = 0  # type: ignore[assignment]  # an attribute of its own
    return model


@pytest.mark.parametrize("border", [1, 2, 4])
def test_the_models_own_counter_counts_on_all_parts(border: int) -> None:
    _check_apart(_counter("front"), border)


@pytest.mark.parametrize("place", ["between", "behind"])
def test_the_models_own_counter_is_refused_where_not_all_parts_see_it(place: str) -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward changes calls between its units, which not all parts would see; change it before the "
        r"first unit, or inside of a unit$",
    ):
        train_apart(_counter(place), 2, _BATCHES)


@pytest.mark.parametrize("place", ["front", "between", "behind"])
def test_the_models_own_counter_is_refused_with_several_parts_on_a_rank(place: str) -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward changes calls between its units, which each of the parts on a rank would do; change it "
        r"inside of a unit, or use a schedule with one part on each rank, as 1F1B$",
    ):
        train_parts(cut(_counter(place), {2}), _counter(place), _BATCHES[0])


def _averaging(model: Any, x: torch.Tensor) -> Any:
    x = model.stem(x)
    model.mean = 0.9 * model.mean + x.detach().mean()
    return model.head(model.blocks[2](model.blocks[1](model.blocks[0](x + model.mean))))


def _remembering(model: Any, x: torch.Tensor) -> Any:
    x = run_plain(model, x)
    x, model.mean = x + model.mean, x.detach().mean()
    return x


def test_a_tensor_of_the_model_that_each_part_on_a_rank_would_replace_is_refused() -> None:
    model: Any = RunChain(_averaging)
    model.mean = torch.zeros(())
    with pytest.raises(GanglineError, match=r"changes mean between its units, which each of the parts on a rank would"):
        train_parts(cut(model, {2}), model, _BATCHES[0])
    # One part alone remembers.
    model = RunChain(_remembering)
    model.mean = torch.zeros(())
    whole, parts = copy.deepcopy(model), cut(model, {2})
    for batch in _BATCHES:
        torch.testing.assert_close(train_parts(parts, model, batch), train_whole(whole, batch))


class _Scaling:
    """A hook that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return output * (1 + 1 / self.calls)


def _hooked(*, is_shared: bool) -> RunChain:
    torch.manual_seed(1)
    model = RunChain(run_plain)
    shared = _Scaling()
    for block in model.blocks:
        block.register_forward_hook(shared if is_shared else _Scaling())
    return model


@pytest.mark.parametrize("border", [1, 2, 4])
def test_hooks_of_units_with_a_state_run_once(border: int) -> None:
    _check_apart(_hooked(is_shared=False), border)


def test_a_hook_of_units_with_a_state_is_refused_where_it_would_run_twice() -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward changes blocks\.0\.calls in a hook of blocks\.0, which each of the parts on a rank would "
        r"do; change it inside of a unit, or use a schedule with one part on each rank, as 1F1B$",
    ):
        train_parts(cut(_hooked(is_shared=False), {2}), nn.Module(), _BATCHES[0])
    with pytest.raises(GanglineError, match=r"changes blocks\.0\.calls, which blocks\.0 and blocks\.1 have in common"):
        train_apart(_hooked(is_shared=True), 2, _BATCHES)


class _Collecting:
    """A hook that keeps outputs."""

    def __init__(self, name: str, values: Any, *, is_detached: bool) -> None:
        self.name = name
        self.values = values
        self.is_detached = is_detached

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        kept = output.detach() if self.is_detached else output
        if isinstance(self.values, dict):
            self.values[self.name] = kept
        else:
            self.values.append(kept)


class _Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def _collecting(values: Any, *, is_inside: bool, is_detached: bool = False) -> RunChain:
    torch.manual_seed(1)
    model = RunChain(run_plain, _Around)
    model.values = values
    for place, block in enumerate(model.blocks):
        hook = _Collecting(str(place), values, is_detached=is_detached)
        inner: Any = block.inner if is_inside else block
        inner.register_forward_hook(hook)
    return model


@pytest.mark.parametrize("make", [dict, list])
def test_what_hooks_collect_inside_of_units_is_refused(make: Any) -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward keeps a value from inside of blocks\.0 in \S+, which the stage of the loss does not "
        r"have; let blocks\.0 return it beside its output, add such values up in the model's forward and let the model "
        r"return the sum, detach it where it is only looked at, or use ddp$",
    ):
        train_apart(_collecting(make(), is_inside=True), 2, _BATCHES)
    _check_apart(_collecting(make(), is_inside=True, is_detached=True))


@pytest.mark.parametrize("border", [2, 3, 4])
def test_what_hooks_of_units_collect_is_on_the_last_part(border: int) -> None:
    model = _collecting({}, is_inside=False)
    whole, copies = copy.deepcopy(model), list[Any]()
    train_apart(model, border, _BATCHES, copies)
    whole(_BATCHES[-1])
    torch.testing.assert_close(copies[1].values, whole.values)


def test_values_of_several_microbatches_in_one_list_are_refused() -> None:
    with pytest.raises(
        GanglineError,
        match=r"whose forward adds values of several microbatches to \S+; take them out in train_batch behind the loss "
        r"and not before the model, or let the model return them$",
    ):
        train_apart(_collecting([], is_inside=False), 2, _BATCHES)
