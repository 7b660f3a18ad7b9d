"""The runs that find out shapes and times leave no trace: units with a state of any kind train and evaluate as in the
whole model, where each shape runs once."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.cutting.model_state import ModelState
from tests.support.parts_alone import cut, train_parts, train_whole
from tests.support.run_chain import WIDTH, RunChain, run_plain

pytestmark = pytest.mark.usefixtures("one_rank")

_BORDERS = {2, 4}
_ROWS = (3, 5, 3, 2)
_calls = 0
_of_file: dict[str, Any] = {"calls": 0}


@dataclasses.dataclass
class _Slotted:
    __slots__ = ("calls",)
    calls: int


@dataclasses.dataclass(frozen=True)
class _Frozen:
    calls: list[int]


# States of a unit, one of each kind, which change with each call.


def _counter(unit: Any) -> Any:
    unit.calls = getattr(unit, "calls", 0) + 1
    return unit.calls


def _memory(unit: Any) -> Any:
    before = getattr(unit, "memory", None)
    unit.memory = unit.latest if before is None else 0.5 * before + unit.latest
    return 1.0 if before is None else before


def _tensor_in_place(unit: Any) -> Any:
    unit.kept.add_(1)
    return unit.kept.clone()


def _view_in_place(unit: Any) -> Any:
    unit.table[1].mul_(2)
    return unit.table[1].clone()


def _growing_list(unit: Any) -> Any:
    unit.history.append(unit.latest)
    return sum(unit.history[-3:])


def _nested(unit: Any) -> Any:
    counts = unit.tree["counts"][0]
    counts["calls"] = counts.get("calls", 0) + 1
    return counts["calls"]


def _set(unit: Any) -> Any:
    unit.numbers.add(len(unit.numbers))
    return len(unit.numbers)


def _queue(unit: Any) -> Any:
    unit.queue.append(unit.latest)
    return sum(unit.queue)


def _object(unit: Any) -> Any:
    unit.state.calls += 1
    return unit.state.calls


def _frozen(unit: Any) -> Any:
    unit.frozen.calls.append(1)
    return len(unit.frozen.calls)


def _array(unit: Any) -> Any:
    unit.array += 1
    return float(unit.array[0])


def _of_class(unit: Any) -> Any:
    type(unit).all_calls += 1
    return type(unit).all_calls


def _global(unit: Any) -> Any:
    global _calls  # noqa: PLW0603  this is what must not change
    _calls += 1
    return _calls


def _global_dict(unit: Any) -> Any:
    _of_file["calls"] += 1
    return _of_file["calls"]


def _parameter(unit: Any) -> Any:
    with torch.no_grad():
        unit.weight.mul_(0.9)
    return 1


def _data(unit: Any) -> Any:
    unit.weight.data = 0.9 * unit.weight.data
    return 1


def _running_statistics(unit: Any) -> Any:
    # torch changes them without a new version.
    nn.functional.batch_norm(torch.full((3, 1), 2.0) + torch.arange(3)[:, None], unit.mean, unit.var, training=True)
    return unit.mean.clone()


def _closure(unit: Any) -> Any:
    return unit.count()


def _partial(unit: Any) -> Any:
    return unit.count_in_list()


def _slots(unit: Any) -> Any:
    unit.slotted.calls += 1
    return unit.slotted.calls


def _schedule(unit: Any) -> Any:
    """Freezes its bias from the third call on."""
    unit.bias.requires_grad_(_counter(unit) < 3)
    return 1


def _hooked_once(unit: Any) -> Any:
    if not unit.is_hooked:
        unit.is_hooked = True
        unit.weight.register_hook(lambda gradient: 2 * gradient)
    return 1


_DRAWS: dict[str, Callable[[Any], Any]] = {
    "torch": lambda unit: float(torch.rand(())),
    "generator": lambda unit: float(torch.rand((), generator=unit.generator)),
    "python": lambda unit: random.random(),
    "own python": lambda unit: unit.random.random(),
    "numpy": lambda unit: float(np.random.rand()),
    "own numpy": lambda unit: float(unit.numpy.random()),
    "legacy numpy": lambda unit: float(unit.legacy.rand()),
}
_STATES = {
    **{
        each.__name__.removeprefix("_"): each
        for each in (
            _counter,
            _memory,
            _tensor_in_place,
            _view_in_place,
            _growing_list,
            _nested,
            _set,
            _queue,
            _object,
            _frozen,
            _array,
            _of_class,
            _global,
            _global_dict,
            _parameter,
            _data,
            _running_statistics,
            _closure,
            _partial,
            _slots,
            _schedule,
            _hooked_once,
        )
    },
    **_DRAWS,
}


class _Unit(nn.Linear):
    all_calls = 0

    def __init__(self, factor: Callable[[Any], Any]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.factor = factor
        self.latest = 0.0
        self.kept = torch.zeros(())
        self.table = torch.ones(3)
        self.history: list[Any] = []
        self.tree: dict[str, list[dict[str, int]]] = {"counts": [{}]}
        self.numbers: set[int] = set()
        self.queue: collections.deque[Any] = collections.deque(maxlen=3)
        self.state = types.SimpleNamespace(calls=0)
        self.frozen = _Frozen([])
        self.slotted = _Slotted(0)
        self.array = np.zeros(2)
        self.mean, self.var = torch.zeros(1), torch.ones(1)
        self.is_hooked = False
        self.generator = torch.Generator().manual_seed(1)
        self.random = random.Random(2)
        self.numpy = np.random.default_rng(3)
        self.legacy = np.random.RandomState(4)
        calls = 0
        numbers: list[Any] = []

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        def count_in(known: list[int]) -> int:
            known.append(1)
            return len(known)

        self.count = count
        self.count_in_list = functools.partial(count_in, numbers)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        factor = self.factor(self)
        y: torch.Tensor = super().forward(input) * (1 + factor)
        self.latest = float(y.detach().mean())
        return y.tanh()


def _make(factor: Callable[[Any], Any]) -> RunChain:
    """A model with a fresh state, also in the file and in the class."""
    global _calls  # noqa: PLW0603  as above
    _calls = _of_file["calls"] = _Unit.all_calls = 0
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return RunChain(run_plain, lambda: _Unit(factor))


def _batches() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    for rows in _ROWS:
        yield torch.randn(rows, WIDTH, generator=generator)


# States that all units of a model have in common.
_SHARED = {
    "of_class": "_Unit.all_calls",
    "global": "blocks.0.factor._calls",
    "global_dict": "blocks.0.factor._of_file.calls",
}


@pytest.mark.parametrize("name", _STATES)
def test_units_with_a_state_train_and_evaluate_as_in_the_whole_model(name: str) -> None:
    whole = _make(_STATES[name])
    wanted = [[*train_whole(whole, batch), whole(batch).detach()] for batch in _batches()]
    model = _make(_STATES[name])
    parts = cut(model, {4} if name in _SHARED else _BORDERS)
    # Measuring a unit that changes a parameter is refused.
    if name != "parameter":
        parts.measure((next(_batches()),), {})
    found = [[*train_parts(parts, model, batch), parts.forward((batch,), {})] for batch in _batches()]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", _SHARED)
def test_a_state_that_units_of_several_parts_share_is_refused(name: str) -> None:
    model = _make(_STATES[name])
    with pytest.raises(
        GanglineError,
        match=rf"whose forward changes {re.escape(_SHARED[name])}, which blocks\.0 and blocks\.1 have in common, and "
        r"each stage has a copy of its own; give each of them its own, put them into one stage with "
        r"parallelism\.split, or use ddp$",
    ):
        train_parts(cut(model, _BORDERS), model, torch.ones(2, WIDTH))


class _Hooking:
    """Counts the calls of a module, whose output it scales by them."""

    def __init__(self) -> None:
        self.calls = 0

    def scale(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return output * self.calls


class _Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def test_a_hook_with_a_state_counts_no_run_that_finds_out_shapes() -> None:
    def make() -> RunChain:
        torch.manual_seed(1)
        model = RunChain(run_plain, _Around)
        model.blocks[0].inner.register_forward_hook(_Hooking().scale)  # type: ignore[union-attr]  # torch types modules loosely
        return model

    whole, model = make(), make()
    parts = cut(model, _BORDERS)
    for batch in _batches():
        torch.testing.assert_close(train_parts(parts, model, batch), train_whole(whole, batch))


def test_objects_that_the_model_is_called_with_stay_as_they_were() -> None:
    class Given:
        def __init__(self) -> None:
            self.kept: list[Any] = []

    class Using(RunChain):
        def forward(self, x: torch.Tensor, given: Any) -> Any:  # type: ignore[override]  # with an object
            y = run_plain(self, x)
            given.kept.append(1)
            return y * len(given.kept)

    torch.manual_seed(1)
    model = Using(run_plain)
    parts, given, x = cut(model, {2}), Given(), torch.ones(2, WIDTH)
    kept = given.kept
    parts.layout_for((x, given), {})
    assert given.kept is kept
    assert kept == []


def test_objects_keep_their_identity_and_what_they_share() -> None:
    model: Any = RunChain(run_plain, lambda: _Unit(_counter))
    shared = {"numbers": [1, 2]}
    model.shared = model.blocks[0].shared = shared
    numbers, memory = shared["numbers"], model.blocks[0].kept
    order = list(vars(model))
    state = ModelState(model)
    model.blocks[0].shared = {"numbers": [3]}
    shared["numbers"] = []
    numbers.clear()
    memory.add_(1)
    model.blocks[0].kept = torch.ones(())
    model.blocks[0].weight = nn.Parameter(torch.ones(WIDTH, WIDTH))
    del model.head
    model.late = nn.Linear(1, 1)
    assert state.restore() is None
    assert model.shared is shared
    assert model.blocks[0].shared is shared
    assert shared["numbers"] is numbers
    assert numbers == [1, 2]
    assert model.blocks[0].kept is memory
    assert memory == 0
    assert list(vars(model)) == order
    assert [name for name, _ in model.named_children()] == ["stem", "blocks", "head"]


def _moving(iterator: Iterator[Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        unit = _Unit(lambda unit: next(unit.moving))
        unit.moving = iterator  # type: ignore[assignment]  # an attribute
        return unit

    return make


def _falling() -> Iterator[float]:
    factor = 1.0
    while True:
        yield factor
        factor *= 0.9


@pytest.mark.parametrize(
    ("iterator", "kind"),
    [
        (_falling, "generator"),
        (lambda: itertools.count(1), "count"),
        (lambda: iter([1.0, 2.0, 3.0] * 9), "list_iterator"),
        (lambda: itertools.cycle([1.0, 2.0]), "cycle"),
        (lambda: zip([1.0] * 9, itertools.count(), strict=False), "zip"),
    ],
)
def test_an_iterator_is_refused_where_a_run_moves_it_on(iterator: Any, kind: str) -> None:
    model = RunChain(run_plain)
    unit: Any = _moving(iterator())()
    unit.factor = lambda unit: 1.0 + 0 * float(str(next(unit.moving)).strip("()").split(",")[0])
    model.blocks[1] = unit
    with pytest.raises(
        GanglineError,
        match=rf"whose forward moves on blocks\.1\.moving, a {kind}, which the run that finds out shapes or times "
        r"cannot set back; keep a number in its place, and compute the next value from it$",
    ):
        train_parts(cut(model, _BORDERS), model, torch.ones(2, WIDTH))
    # The way out.
    unit.factor, unit.moving = _counter, None
    train_parts(cut(model, _BORDERS), model, torch.ones(2, WIDTH))


def test_an_iterator_that_stands_still_is_no_matter() -> None:
    model: Any = RunChain(run_plain)
    model.blocks[1].unused = _falling()
    train_parts(cut(model, _BORDERS), model, torch.ones(2, WIDTH))


def test_a_parameter_that_changes_while_units_are_measured_is_refused() -> None:
    model = RunChain(run_plain, lambda: _Unit(_parameter))
    parts = cut(model, _BORDERS)
    with pytest.raises(
        GanglineError, match=r"changes blocks\.0\.weight in place, .* cannot set back; make it a buffer of its module$"
    ):
        parts.measure((torch.ones(2, WIDTH),), {})


def test_gradients_and_flags_of_parameters_come_back() -> None:
    model: Any = RunChain(run_plain, lambda: _Unit(_counter))
    weight, bias = model.blocks[0].weight, model.blocks[0].bias
    weight.grad = torch.ones_like(weight)
    gradient = weight.grad
    state = ModelState(model)
    state.memory.note_write(torch.ops.aten.add_.Tensor, (gradient, 1), {})
    gradient.add_(1)
    bias.grad = torch.ones_like(bias)
    bias.requires_grad_(False)
    weight.register_hook(lambda each: each)
    weight.note = "added"
    assert state.restore() is None
    assert weight.grad is gradient
    assert gradient.eq(1).all()
    assert bias.grad is None
    assert bias.requires_grad
    assert weight._backward_hooks is None
    assert not hasattr(weight, "note")
