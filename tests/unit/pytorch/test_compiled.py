"""Units of a model that is compiled as a whole are compiled one by one, with the same options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from gangline.pytorch.parallel.shared.ownership import inner_of
from gangline.pytorch.parallel.staged.compiled import UnitCompiler, is_compiled
from gangline.pytorch.parallel.staged.cutting.cut import CutModel
from gangline.pytorch.parallel.staged.fitness import check_model
from gangline.pytorch.parallel.staged.unit import find_units
from tests.support.pipeline_models import Chain, Tied

_INPUTS = torch.ones(3, 6)


class _Backend:
    """Counts graphs, their calls, and inputs of an unknown size."""

    def __init__(self) -> None:
        self.graphs = self.calls = self.symbols = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        self.symbols += sum(isinstance(value, torch.SymInt) for value in inputs)

        def call(*args: Any) -> Any:
            self.calls += 1
            return graph.forward(*args)

        return call


@pytest.fixture
def backend() -> _Backend:
    torch._dynamo.reset()
    return _Backend()


def _cut(model: nn.Module) -> CutModel:
    inner = inner_of(model)
    units = find_units(model)
    cut = CutModel(inner, units, torch.device("cpu"))
    UnitCompiler(model, units, cut, "1F1B")
    return cut


def _run(model: nn.Module) -> torch.Tensor:
    out: torch.Tensor = _cut(model).run_whole((_INPUTS,), {})
    return out


class _Numbered(nn.Linear):
    def __init__(self, number: int) -> None:
        super().__init__(6, 6)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.number


class _Breaking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1


class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner: Any = Chain()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(x))
        return out


def test_each_unit_is_compiled(backend: _Backend) -> None:
    model = Chain()
    wanted = model(_INPUTS)
    compiled: Any = torch.compile(model, backend=backend)
    assert torch.equal(_run(compiled), wanted)
    # Stem, four blocks, head; the blocks share one graph.
    assert (backend.calls, backend.graphs) == (6, 3)


def test_compiled_in_place(backend: _Backend) -> None:
    model = Chain()
    wanted = model(_INPUTS)
    model.compile(backend=backend)
    assert is_compiled(model)
    assert torch.equal(_run(model), wanted)
    assert backend.calls == 6
    assert not is_compiled(model)


def test_options_are_kept(backend: _Backend) -> None:
    _run(torch.compile(Chain(), backend=backend, dynamic=True))  # type: ignore[arg-type]  # torch types it as a function
    assert backend.symbols
    loose, strict = (
        torch.compile(nn.Sequential(nn.Linear(6, 6), _Breaking()), backend=backend, fullgraph=is_whole)
        for is_whole in (False, True)
    )
    _run(loose)  # type: ignore[arg-type]  # as above
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        _run(strict)  # type: ignore[arg-type]  # as above


def test_many_different_units_are_all_compiled(backend: _Backend) -> None:
    model = nn.Sequential(*(_Numbered(number) for number in range(1, 21)))
    _run(torch.compile(model, backend=backend, fullgraph=True))  # type: ignore[arg-type]  # torch types it as a function
    assert backend.calls == 20


def test_a_module_around_the_units_gives_them_its_compiler(backend: _Backend) -> None:
    model = _Nested()
    wanted = model(_INPUTS)
    model.inner = torch.compile(model.inner, backend=backend)
    names = list(model.state_dict())
    assert torch.equal(_run(model), wanted)
    # Without the head, which is outside.
    assert backend.calls == 6
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_unit_keeps_its_own_compiler(is_in_place: bool, backend: _Backend) -> None:
    model, own = Chain(), _Backend()
    wanted = model(_INPUTS)
    if is_in_place:
        model.blocks[1].compile(backend=own)
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend=own)  # type: ignore[assignment]  # torch types it as a function
    assert torch.equal(_run(torch.compile(model, backend=backend)), wanted)  # type: ignore[arg-type]  # as above
    assert (backend.calls, own.calls) == (5, 1)


def test_names_of_units_are_those_of_the_plain_model() -> None:
    assert find_units(torch.compile(Tied())) == find_units(Tied())  # type: ignore[arg-type]  # torch types it as a function


def test_what_cannot_be_cut_is_refused(backend: _Backend) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(GanglineError, match=r"which TorchScript has compiled; pass the module itself"):
        check_model(scripted, None, "1F1B")
    compiled = torch.compile(Chain(), backend=backend)
    check_model(compiled, None, "1F1B")  # type: ignore[arg-type]  # torch types it as a function
    with pytest.raises(GanglineError, match=r"ZBVZeroBubble .* cannot do in compiled modules; use schedule: 1F1B"):
        check_model(compiled, None, "ZBVZeroBubble")  # type: ignore[arg-type]  # as above
    with pytest.raises(GanglineError, match=r"pipeline trains one model, but Chain is wrapped after Tied"):
        check_model(compiled, Tied(), "1F1B")  # type: ignore[arg-type]  # as above


def test_a_model_that_is_compiled_later(backend: _Backend) -> None:
    model = Chain()
    wanted = model(_INPUTS)
    units = find_units(model)
    cut = CutModel(model, units, torch.device("cpu"))
    compiler = UnitCompiler(model, units, cut, "1F1B")

    def forward(x: torch.Tensor) -> torch.Tensor:
        compiler.follow_caller()
        out: torch.Tensor = cut.run_whole((x,), {})
        return out

    model.forward = torch.compiler.disable(forward)  # type: ignore[method-assign, no-untyped-call]  # torch leaves it untyped
    model(_INPUTS)
    assert backend.calls == 0
    # A compiled function that is not this model says nothing about it.
    hidden = torch.compiler.disable(model)  # type: ignore[no-untyped-call]  # as above

    def call() -> torch.Tensor:
        out: torch.Tensor = hidden(_INPUTS)
        return out

    torch.compile(call, backend=backend)()
    assert backend.calls == 0
    with pytest.raises(GanglineError, match=r"Chain with fullgraph=True after context\.wrap_model; call torch.compile"):
        torch.compile(model, backend=backend, fullgraph=True)(_INPUTS)
    assert torch.equal(torch.compile(model, backend=backend)(_INPUTS), wanted)
    assert backend.calls == 6


def test_a_schedule_refuses_a_model_that_is_compiled_later(backend: _Backend) -> None:
    model = Chain()
    units = find_units(model)
    compiler = UnitCompiler(model, units, CutModel(model, units, torch.device("cpu")), "ZBVZeroBubble")

    def forward(x: torch.Tensor) -> None:
        compiler.follow_caller()

    model.forward = torch.compiler.disable(forward)  # type: ignore[method-assign, no-untyped-call]  # torch leaves it untyped
    model.compile(backend=backend)
    with pytest.raises(GanglineError, match="ZBVZeroBubble"):
        model(_INPUTS)


def _with_function() -> nn.Module:
    model = Chain()
    model.act = torch.compile(torch.nn.functional.relu, mode="reduce-overhead")  # type: ignore[assignment]  # an attribute
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(Chain(), mode="reduce-overhead"),
        lambda: torch.compile(Chain(), mode="max-autotune"),
        lambda: torch.compile(Chain(), options={"triton.cudagraphs": True}),
        lambda: torch.compile(Chain(), backend="cudagraphs"),
        lambda: nn.Sequential(nn.Linear(6, 6), torch.compile(nn.Linear(6, 6), mode="reduce-overhead")),  # type: ignore[call-overload]  # torch types it as a function
        _with_function,
    ],
    ids=["reduce-overhead", "max-autotune", "option", "backend", "one unit", "function"],
)
def test_cuda_graphs_are_refused_on_a_gpu(make: Callable[[], Any]) -> None:
    check_model(make(), None, "1F1B", torch.device("cpu"))
    with pytest.raises(
        GanglineError,
        match=r"pipeline cannot train \w+ as CUDA graphs, which write .* give torch\.compile the mode default or "
        r"max-autotune-no-cudagraphs, or use ddp$",
    ):
        check_model(make(), None, "1F1B", torch.device("cuda", 0))


@pytest.mark.parametrize("mode", [None, "default", "max-autotune-no-cudagraphs"])
def test_other_modes_are_no_cuda_graphs(mode: str | None) -> None:
    check_model(torch.compile(Chain(), mode=mode), None, "1F1B", torch.device("cuda", 0))  # type: ignore[arg-type]  # torch types it as a function


def test_cuda_graphs_of_a_model_that_is_compiled_later_are_refused(backend: _Backend) -> None:
    model = Chain()
    units = find_units(model)
    compiler = UnitCompiler(model, units, CutModel(model, units, torch.device("cuda", 0)), "1F1B")

    def forward(x: torch.Tensor) -> None:
        compiler.follow_caller()

    model.forward = torch.compiler.disable(forward)  # type: ignore[method-assign, no-untyped-call]  # torch leaves it untyped
    model.compile(mode="reduce-overhead")
    with pytest.raises(GanglineError, match="pipeline cannot train Chain as CUDA graphs"):
        model(_INPUTS)
