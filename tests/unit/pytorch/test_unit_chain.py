"""The units of a model's chain, and a part of a model that runs by itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.cutting.cut import CutModel
from gangline.pytorch.parallel.staged.cutting.part_run import PartRun
from gangline.pytorch.parallel.staged.cutting.watch import ValuesNeeded
from gangline.pytorch.parallel.staged.layout import Described, decode, encode, tensors_of
from gangline.pytorch.parallel.staged.unit import divide_units, find_units
from tests.support.pipeline_models import Backwards, Chain, Paired, Recurrent, Reentrant, Skipping, Tied, make_norm

_CPU = torch.device("cpu")


def _names(model: nn.Module) -> list[str]:
    return [unit.name for unit in find_units(model)]


def test_units_are_the_members_of_lists_and_what_is_before_and_after() -> None:
    assert _names(Chain()) == ["stem", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"]
    assert _names(Recurrent()) == ["layers.0", "layers.1", "head"]
    with torch.device("meta"):
        assert _names(Tied()) == [
            "transformer.tokens to transformer.positions",
            *(f"transformer.layers.{place}" for place in range(3)),
            "transformer.norm to head",
        ]
    assert _names(make_norm()) == [str(place) for place in range(7)]


def test_several_lists_are_one_chain() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            self.pool = nn.ReLU()
            self.second = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            self.flatten = nn.Flatten()

    assert _names(Net()) == ["first.0", "first.1", "pool to second.0", "second.1 to flatten"]


def test_a_list_inside_of_the_largest_member_is_found() -> None:
    model = nn.Sequential(nn.Linear(6, 8), Chain())
    assert _names(model)[:3] == ["0", "1.stem to 1.blocks.0", "1.blocks.1"]


@pytest.mark.parametrize(
    "model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.ReLU(), nn.ReLU())]
)
def test_a_model_of_one_unit_is_refused(model: nn.Module) -> None:
    with pytest.raises(GanglineError, match=r"which is one unit: it has no nn\.ModuleList and no nn\.Sequential"):
        find_units(model)


def test_split_by_hand() -> None:
    model = Chain()
    units = find_units(model)
    assert divide_units(model, units, 3, ["blocks.1", "head"]) == [2, 3, 1]
    with pytest.raises(GanglineError, match=r"there is no unit 'block.1'; did you mean blocks.1 or blocks.3"):
        divide_units(model, units, 2, ["block.1"])
    with pytest.raises(GanglineError, match=r"blocks\.1 is not after the beginning of the part before it"):
        divide_units(model, units, 3, ["blocks.2", "blocks.1"])
    with pytest.raises(GanglineError, match=r"has 6 units, but 7 stages with 1F1B are 7 parts; use at most 6"):
        divide_units(model, units, 7)


@dataclass(frozen=True)
class _Part:
    """A part of a model whose first run was checked. hidden: what came from the part before."""

    cut: CutModel
    first: int
    last: int
    hidden: Any
    layout: dict[str, Described]

    def again(self) -> PartRun:
        return PartRun(self.first, self.last, self.hidden, self.layout)


def _two_parts(model: nn.Module, inputs: torch.Tensor, carry: Sequence[str] = ()) -> tuple[_Part, _Part]:
    """Runs a chain in two parts of three units, with checks."""
    cut = CutModel(model, find_units(model), _CPU, carry)
    first = PartRun(0, 2, is_checked=True)
    value = cut.run_part(first, (inputs,), {})
    second = PartRun(3, 5, value, first.described, is_checked=True)
    cut.run_part(second, (inputs,), {})
    layout = first.described | second.described
    return _Part(cut, 0, 2, None, layout), _Part(cut, 3, 5, value.detach(), layout)


def _run_in_parts(model: nn.Module, counts: list[int], *args: Any, is_checked: bool = True) -> Any:
    """Runs one part after another, as ranks do, each with what the part before sent."""
    units = find_units(model)
    ends = [sum(counts[: place + 1]) for place in range(len(counts))]
    cut = CutModel(model, units, _CPU)
    layout: dict[str, Described] = {}
    value: Any = None
    for first, end in pairwise([0, *ends]):
        run = PartRun(first, end - 1, value, layout, is_checked=is_checked)
        value = cut.run_part(run, args, {})
        layout |= decode(encode(run.described))
    return value


@pytest.mark.parametrize("counts", [[1, 5], [2, 2, 2], [1, 1, 1, 1, 1, 1], [5, 1]])
def test_parts_compute_what_the_model_computes(counts: list[int]) -> None:
    torch.manual_seed(1)
    model = Chain()
    inputs = torch.randn(4, 6)
    wanted = model(inputs)
    assert torch.equal(_run_in_parts(model, counts, inputs), wanted)


@pytest.mark.parametrize("counts", [[1, 4], [2, 3], [4, 1]])
def test_parts_of_a_model_with_masks_and_dictionaries(counts: list[int]) -> None:
    torch.manual_seed(1)
    model = Tied()
    tokens = torch.randint(11, (2, 5))
    wanted = model(tokens)["logits"]
    assert torch.equal(_run_in_parts(model, counts, tokens)["logits"], wanted)


def test_the_first_run_may_be_in_inference_mode() -> None:
    torch.manual_seed(1)
    model = Chain()
    with torch.inference_mode():
        inputs = torch.randn(4, 6)
        wanted = model(inputs)
        assert torch.equal(_run_in_parts(model, [3, 3], inputs), wanted)


def test_nested_outputs_cross_a_cut() -> None:
    model = Recurrent()
    inputs = torch.randn(4, 6)
    wanted = model(inputs)
    assert torch.equal(_run_in_parts(model, [1, 2], inputs), wanted)


@pytest.mark.parametrize(
    ("use", "is_needed"),
    [
        (lambda x, first: x + first, True),
        # No gradient goes back to the first block in these.
        (lambda x, first: x + first.detach(), True),
        (lambda x, first: x * (first > 0), True),
        (lambda x, first: torch.zeros_like(x).copy_(first), True),
        (lambda x, first: x * 2 if first.mean() > 0 else x, True),
        (lambda x, first: x[: len(first[first[:, 0] > 0])], True),
        (lambda x, first: x * first.sum().tolist(), True),
        (lambda x, first: x * float(first.detach().numpy().sum()), True),
        # These read its shape and its type alone.
        (lambda x, first: x + torch.ones_like(first), False),
        (lambda x, first: x + first.new_zeros(first.shape[1]), False),
    ],
)
def test_values_that_pass_over_a_cut_are_found(use: Any, is_needed: bool) -> None:
    class Model(Chain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = x = self.blocks[0](self.stem(x))
            for block in self.blocks[1:]:
                x = block(x)
            out: torch.Tensor = self.head(use(x, first))
            return out

    inputs, model = torch.randn(4, 6), Model()
    wanted = model(inputs)
    if is_needed:
        with pytest.raises(ValuesNeeded) as raised:
            _run_in_parts(model, [3, 3], inputs)
        assert (raised.value.outputs, raised.value.parameters) == (["blocks.0"], [])
    else:
        assert torch.equal(_run_in_parts(model, [3, 3], inputs), wanted)


def test_a_connection_inside_of_a_part_needs_nothing() -> None:
    model, inputs = Skipping(), torch.randn(4, 6)
    wanted = model(inputs)
    assert torch.equal(_run_in_parts(model, [1, 5], inputs), wanted)


def test_a_carried_output_takes_the_place_of_its_module() -> None:
    torch.manual_seed(1)
    model, inputs = Skipping(), torch.randn(4, 6)
    wanted = model(inputs)
    cut = CutModel(model, find_units(model), _CPU)
    first = PartRun(0, 2, is_checked=True, keeps=["blocks.0"])
    value = cut.run_part(first, (inputs,), {})
    second = PartRun(3, 5, value, first.described, carried=first.kept, is_checked=True)
    assert torch.equal(cut.run_part(second, (inputs,), {}), wanted)


def test_an_output_that_a_unit_changes_and_a_later_part_needs_is_refused() -> None:
    model, inputs = Skipping(), torch.randn(4, 6)
    model.blocks[1] = nn.Sequential(nn.ReLU(inplace=True), model.blocks[1])
    cut = CutModel(model, find_units(model), _CPU)
    cut.run_part(PartRun(0, 2, is_checked=True), (inputs,), {})
    with pytest.raises(
        GanglineError, match=r"changes the output of blocks\.0 in place inside of blocks\.1, and a later"
    ):
        cut.run_part(PartRun(0, 2, is_checked=True, keeps=["blocks.0"]), (inputs,), {})


class _Counting(Chain):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
            self.mean += x.detach().mean(0)
        out: torch.Tensor = self.head(x)
        return out


def test_a_buffer_that_is_changed_between_units_is_refused() -> None:
    with pytest.raises(GanglineError, match="changes its buffer mean between its units, which one part alone would"):
        _run_in_parts(_Counting(), [3, 3], torch.randn(4, 6))


def _masked(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x * (first > 0)


def _decided(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x if first.mean() > 0 else 2 * x


def _listed(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    factor: float = first.tolist()[0][0]
    return x * factor


def _selected(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x[: len(x[first > 0])]


def _collected(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros(2, *x.shape)
    kept[0] = first
    return x + kept.sum(0)


def _changed(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x + first.add_(1).relu_()


def _reshaped(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return x + first.view(-1).view(4, 8).transpose(0, 1).reshape(4, 8)


def _gathered(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    torch._foreach_add_([total], [first])
    return x + total


def _unused(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    # What reads only the shape, and what nothing comes of.
    first.add_(x).view(-1).mul_(2)
    return x + torch.zeros_like(first)


class _Joining(Chain):
    """Whose head's input is joined with the first block's output; None leaves it as it is."""

    join: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        out: torch.Tensor = self.head(x if self.join is None else self.join(x, first))
        return out


@pytest.mark.parametrize("join", [_masked, _decided, _listed, _selected, _collected, _changed, _reshaped, _gathered])
def test_a_connection_that_appears_later_is_refused_with_the_option_that_helps(join: Any) -> None:
    model, inputs = _Joining(), torch.randn(4, 6)
    first, second = _two_parts(model, inputs)
    first.cut.run_part(first.again(), (inputs,), {})
    model.join = join
    with pytest.raises(GanglineError, match=r"needs the output of blocks\.0 in .* parallelism\.carry: \[blocks\.0\],"):
        second.cut.run_part(second.again(), (inputs,), {})


def test_values_that_nothing_comes_of_are_no_connection() -> None:
    torch.manual_seed(1)
    model, inputs = _Joining(), torch.randn(4, 6)
    wanted = model(inputs)
    _, second = _two_parts(model, inputs)
    model.join = _unused
    assert torch.equal(second.cut.run_part(second.again(), (inputs,), {}), wanted)


def test_a_run_is_freed_without_garbage_collection() -> None:
    model, inputs = _Joining(), torch.randn(4, 6)
    _, second = _two_parts(model, inputs)
    gc.disable()
    try:
        run = second.again()
        watch = weakref.ref(run.watch)
        second.cut.run_part(run, (inputs,), {})
        del run
        assert watch() is None
    finally:
        gc.enable()


def test_placeholders_are_dense_and_change_their_shape() -> None:
    torch.manual_seed(1)
    model, inputs = _Joining(), torch.randn(4, 6)
    shapes: list[Any] = []

    def join(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        assert first.is_contiguous()
        shapes.append(torch.view_as_complex(first.view(4, 4, 2)).shape)
        shapes.append(first.unsqueeze_(0).shape)
        return x

    wanted = model(inputs)
    _, second = _two_parts(model, inputs)
    model.join = join
    assert torch.equal(second.cut.run_part(second.again(), (inputs,), {}), wanted)
    assert shapes == [(4, 4), (1, 4, 8)]


def test_a_run_keeps_nothing_that_is_made_of_placeholders() -> None:
    model, inputs = _Joining(), torch.randn(4, 6)
    _, second = _two_parts(model, inputs)
    kept: list[weakref.ref[torch.UntypedStorage]] = []

    def join(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        made = first * 2
        kept.append(weakref.ref(made.untyped_storage()))
        assert kept[0]() is not None
        del made
        assert kept[0]() is None
        return x

    model.join = join
    second.cut.run_part(second.again(), (inputs,), {})
    assert len(kept) == 1


def test_the_advice_has_the_units_that_are_carried_already() -> None:
    model, inputs = _Joining(), torch.randn(4, 6)
    _, second = _two_parts(model, inputs, carry=["blocks.1"])
    model.join = _masked
    with pytest.raises(GanglineError, match=r"set parallelism\.carry: \[blocks\.0, blocks\.1\], so"):
        second.cut.run_part(second.again(), (inputs,), {})


class _WithExtra(nn.Module):
    """A unit that gets a second value and uses it once is_late. compiled: for torch.compile of the unit."""

    is_late = False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x + extra if self.is_late else x)
        return out


class _Passing(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        out: torch.Tensor = self.head(x, first)
        return out


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_unit_may_get_what_it_uses_later(is_compiled: bool) -> None:
    torch.manual_seed(1)
    model, inputs = _Passing(), torch.randn(4, 6)
    model.head = _WithExtra()  # type: ignore[assignment]  # another class than the chain's
    wanted = model(inputs)
    if is_compiled:
        model.head.compile(backend="aot_eager")
    _, second = _two_parts(model, inputs)
    assert torch.equal(second.cut.run_part(second.again(), (inputs,), {}), wanted)
    model.head.is_late = True  # type: ignore[assignment]  # an attribute of the unit
    with pytest.raises(GanglineError, match=r"needs the output of blocks\.0 in a later part, and did not in the first"):
        second.cut.run_part(second.again(), (inputs,), {})


def test_a_function_between_units_may_be_compiled() -> None:
    torch.manual_seed(1)
    model, inputs = _Joining(), torch.randn(4, 6)
    double = torch.compile(lambda value: 2 * value, backend="aot_eager", fullgraph=True)
    model.join = lambda x, _: 2 * x
    wanted = model(inputs)
    _, second = _two_parts(model, inputs)
    model.join = lambda x, _: double(x)
    assert torch.equal(second.cut.run_part(second.again(), (inputs,), {}), wanted)
    model.join = lambda x, first: x + double(first)
    with pytest.raises(GanglineError, match=r"needs the output of blocks\.0 in a later part"):
        second.cut.run_part(second.again(), (inputs,), {})


def test_a_parameter_that_is_read_later_is_named() -> None:
    model, inputs = _Joining(), torch.randn(4, 6)
    _, second = _two_parts(model, inputs)
    model.stem.to("meta")
    model.join = lambda x, _: x @ model.stem.weight.new_zeros(8, 8) + model.stem.bias
    with pytest.raises(GanglineError, match=r"uses stem\.(weight|bias) outside of its module, and did not in"):
        second.cut.run_part(second.again(), (inputs,), {})


def test_a_mode_that_the_model_enters_keeps_its_place() -> None:
    torch.manual_seed(1)
    model, inputs = _Joining(), torch.randn(4, 6)
    wanted = model(inputs)
    seen: list[str] = []

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    forward = model.forward

    def entered(x: torch.Tensor) -> torch.Tensor:
        with Mode():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return forward(x)

    model.forward = entered  # type: ignore[method-assign]  # a model with another forward
    _, second = _two_parts(model, inputs)
    seen.clear()
    assert torch.equal(second.cut.run_part(second.again(), (inputs,), {}), wanted)
    assert any("addmm" in name for name in seen)
    model.join = _masked
    with pytest.raises(GanglineError, match=r"needs the output of blocks\.0"):
        second.cut.run_part(second.again(), (inputs,), {})


def test_another_order_is_refused() -> None:
    with pytest.raises(GanglineError, match=r"in the order of its definition|in another order"):
        _run_in_parts(Backwards(), [3, 3], torch.randn(4, 6))


@pytest.mark.parametrize("counts", [[1, 5], [3, 3]])
def test_reentrant_checkpoints_around_units_are_refused(counts: list[int]) -> None:
    with pytest.raises(GanglineError, match=r"calls blocks\.0 in a reentrant .*; pass use_reentrant=False to torch"):
        _run_in_parts(Reentrant(), counts, torch.randn(4, 6))


def test_a_checkpoint_may_have_units_of_one_part_only() -> None:
    inputs = torch.randn(4, 6)
    model = Paired()
    wanted = model(inputs)
    assert torch.equal(_run_in_parts(model, [3, 3], inputs), wanted)
    with pytest.raises(GanglineError, match=r"runs blocks\.1 in one checkpoint with a unit of an earlier part"):
        _run_in_parts(Paired(), [2, 4], inputs)


def test_other_hooks_around_units_are_no_checkpoint() -> None:
    inputs = torch.randn(4, 6)
    model = Chain()
    wanted = model(inputs)
    with torch.autograd.graph.save_on_cpu():
        assert torch.equal(_run_in_parts(model, [2, 4], inputs), wanted)


def test_descriptions_survive_their_way() -> None:
    model = Tied()
    run = PartRun(0, 4, is_checked=True)
    output = CutModel(model, find_units(model), _CPU).run_part(run, (torch.randint(11, (2, 5)),), {})
    read = decode(encode(run.described))
    assert read == run.described
    layer = read["transformer.layers.0"]
    hidden, number = layer.fill([torch.zeros(2, 5, 8)])
    assert (tuple(hidden.shape), number) == ((2, 5, 8), 1)
    assert [tuple(tensor.shape) for tensor in tensors_of(output)] == [(2, 5, 11)]
