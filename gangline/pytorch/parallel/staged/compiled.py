"""Compiles the units of a model that the user compiles as a whole.

A part of a pipeline leaves units out and ends the model's forward with an exception, which torch.compile cannot trace.
So each unit is compiled by itself, with the options of the user's torch.compile: backend, mode, dynamic, fullgraph. The
code between units runs as it is written. Names stay those of the model that the user wrapped.

torch keeps the options in a context object, which makes a compiled function of any function. A compiled module has it
as an attribute. After `model.compile()`, and where a wrapped model is compiled, it is a variable of the function that
torch makes. Used by the strategy `pipeline`.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule, _TorchDynamoContext

from gangline.config.pipeline import SCHEDULES
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.recomputed import Recomputed
from gangline.pytorch.parallel.shared.ownership import class_name, inner_of
from gangline.pytorch.parallel.staged.cutting.cut import CutModel
from gangline.pytorch.parallel.staged.unit import Unit

# Frames between the forward of a wrapped model and the call of its compiled form; some more than torch 2.13 has.
_MOST_FRAMES = 12
# Name of the function that torch makes of a function to compile.
_COMPILED_CALL = "compile_wrapper"


def is_compiled(model: nn.Module) -> bool:
    """Returns whether a model or a module inside it is compiled."""
    return any(_compiler_of(module) is not None for module in model.modules())


def refuse_compilation(schedule: str) -> GanglineError:
    """Returns the error for a schedule that cannot train compiled modules."""
    return invalid(
        "parallelism.schedule",
        f"{schedule} computes the gradients of inputs and weights apart, which torch cannot do in compiled modules; "
        "use schedule: 1F1B, or leave torch.compile out",
    )


def refuse_cuda_graphs(model: nn.Module) -> GanglineError:
    """Returns the error for a model that runs as CUDA graphs."""
    return invalid(
        "parallelism.model",
        f"pipeline cannot train {class_name(model)} as CUDA graphs, which write the values of a microbatch over those "
        "of another one that waits for its backward pass; give torch.compile the mode default or "
        "max-autotune-no-cudagraphs, or use ddp",
    )


def has_cuda_graphs(model: nn.Module) -> bool:
    """Returns whether a model, a module inside it, or a function in an attribute of one is compiled to CUDA graphs."""
    for module in model.modules():
        compiler = _compiler_of(module)
        if compiler is not None and makes_cuda_graphs(compiler):
            return True
        configs = [getattr(value, "get_compiler_config", None) for value in vars(module).values()]
        if any(callable(config) and _has_graphs(config()) for config in configs):
            return True
    return False


def makes_cuda_graphs(compiler: _TorchDynamoContext) -> bool:
    """Returns whether compiled code becomes CUDA graphs on a GPU, as in the mode reduce-overhead."""
    backend: Any = compiler.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return _has_graphs(compiler.compiler_config) or getattr(backend, "compiler_name", None) == "cudagraphs"


def _has_graphs(config: Any) -> bool:
    return isinstance(config, dict) and bool(config.get("triton.cudagraphs"))


class UnitCompiler:
    """Compiles the units of one model. model: as the user wrapped it. cut: makes parts of `inner_of(model)`.

    Takes over compilations of the model, and of modules inside it that contain units.
    """

    def __init__(self, model: nn.Module, units: Sequence[Unit], cut: CutModel, schedule: str) -> None:
        self._model = model
        self._inner = inner_of(model)
        self._cut = cut
        self._schedule = schedule
        self._paths = [path for unit in units for path in unit.paths]
        self._is_on = False
        compilers = self._take_compilers()
        if compilers:
            self._compile(compilers)

    def follow_caller(self) -> None:
        """Compiles the units where a compiled form of the wrapped model runs, as after torch.compile of what
        context.wrap_model returned. Called in the model's forward. Raises GanglineError `parallelism.*`."""
        if self._is_on:
            return
        compiler = self._running_compiler()
        if compiler is None:
            return
        if not SCHEDULES[self._schedule].can_compile:
            raise refuse_compilation(self._schedule)
        if self._cut.device.type == "cuda" and makes_cuda_graphs(compiler):
            raise refuse_cuda_graphs(self._inner)
        if compiler.fullgraph:
            # torch would find no compiled code in the model's own call, and raise an error.
            raise invalid(
                "parallelism.model",
                f"pipeline cannot compile {class_name(self._inner)} with fullgraph=True after context.wrap_model; "
                "call torch.compile before it",
            )
        for model in (self._model, self._inner):
            model._compiled_call_impl = None
        self._compile({"": compiler})

    def _take_compilers(self) -> dict[str, _TorchDynamoContext]:
        """Returns the compilers by the paths of their modules, which run as they are written from then on."""
        compilers: dict[str, _TorchDynamoContext] = {}
        for name, module in [("", self._model), *self._inner.named_modules()]:
            compiler = _compiler_of(module)
            if compiler is None or not any(_is_below(path, name) for path in self._paths):
                continue
            if isinstance(module, OptimizedModule):
                if name in self._paths:
                    # A compiled unit stays as it is.
                    continue
                module.forward = module._orig_mod.__call__
            module._compiled_call_impl = None
            compilers[name] = compiler
        return compilers

    def _running_compiler(self) -> _TorchDynamoContext | None:
        frame = sys._getframe(1)
        for _ in range(_MOST_FRAMES):
            if frame.f_code.co_name == _COMPILED_CALL:
                called = getattr(frame.f_locals.get("fn"), "__self__", None)
                compiler = frame.f_locals.get("self")
                is_own = called is self._model or called is self._inner
                return compiler if is_own and isinstance(compiler, _TorchDynamoContext) else None
            if frame.f_back is None:
                break
            frame = frame.f_back
        return None

    def _compile(self, compilers: dict[str, _TorchDynamoContext]) -> None:
        """Compiles the units below these paths. The innermost compiler counts."""
        self._is_on = True
        compilers = {name: _for_units(compiler, len(self._paths)) for name, compiler in compilers.items()}

        def change(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
            names = [name for name in compilers if _is_below(path, name)]
            return _compiled(forward, compilers[max(names, key=len)]) if names else forward

        self._cut.change_forwards(change)


def _compiler_of(module: nn.Module) -> _TorchDynamoContext | None:
    if isinstance(module, OptimizedModule):
        return module.dynamo_ctx
    if module._compiled_call_impl is None:
        return None
    compiler = inspect.getclosurevars(module._compiled_call_impl).nonlocals.get("self")
    return compiler if isinstance(compiler, _TorchDynamoContext) else None


def _is_below(path: str, name: str) -> bool:
    return not name or path == name or path.startswith(f"{name}.")


def _for_units(compiler: _TorchDynamoContext, count: int) -> _TorchDynamoContext:
    """Returns a compiler with the same options. Units of one class share their compiled code, and torch stops compiling
    a function that has more than `recompile_limit` forms, as one for each layer's number."""
    config = torch._dynamo.config
    raised = config._make_closure_patcher(recompile_limit=config.recompile_limit * count)
    own = copy.copy(compiler)
    own.enter_exit_hooks = [*compiler.enter_exit_hooks, raised]
    return own


def _compiled(forward: Callable[..., Any], compiler: _TorchDynamoContext) -> Callable[..., Any]:
    if isinstance(forward, Recomputed):
        # The compiled code runs again in the backward pass.
        forward.change(lambda inner: _compiled(inner, compiler))
        return forward
    is_function = hasattr(forward, "__code__") and not hasattr(forward, "_torchdynamo_orig_callable")
    return compiler(forward) if is_function else forward
