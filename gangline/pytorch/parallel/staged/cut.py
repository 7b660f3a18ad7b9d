"""Runs a part of a model: the model's own forward, in which the units of other parts do nothing.

Every part calls the forward with the model's real inputs. Units of earlier parts return placeholders, and the last of
them returns the value that came from the part before. The forward ends at the first unit of a later part. So the code
between two units runs on the part of the second one, and masks or positions that blocks get as further arguments are
computed where they are needed.

Also owns the check that the units form a chain, which is made once for each shape of inputs. A placeholder that reaches
the part's output shows a connection that passes over the beginning of the part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.staged.layout import Described, TensorShape, describe, tensors_of
from gangline.pytorch.parallel.staged.timing import measure
from gangline.pytorch.parallel.staged.unit import Unit


class ValuesNeeded(BaseException):
    """Ends a checked forward that reads parameters of other parts outside of their modules. parameters: these."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__()
        self.parameters = parameters


class _PartEnd(BaseException):
    """Ends a forward where the next part begins. No Exception, so that a model's own handlers let it pass."""


@dataclass(slots=True)
class PartRun:
    """One run of a part. first, last: its units. received: the value from the part before. layout: descriptions of the
    outputs of earlier units' modules. output: the value for the next part, or of the model.

    is_checked: whether the run checks the chain and describes the part's own outputs in `described`. seconds: where it
    is given, the run measures the part's units in it, each by itself, forward and backward.
    """

    first: int
    last: int
    received: Any = None
    layout: dict[str, Described] = field(default_factory=dict)
    is_checked: bool = False
    described: dict[str, Described] = field(default_factory=dict)
    output: Any = None
    is_complete: bool = False
    is_begun: bool = False
    newest_unit: int = -1
    placeholders: list[torch.Tensor] = field(default_factory=list)
    seconds: dict[int, float] | None = None


class CutModel:
    """A model whose units can be left out. All of its modules stay in place."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], device: torch.device) -> None:
        self._model = model
        self._units = units
        self._device = device
        self._run: PartRun | None = None
        self._is_whole = False
        # Zeros by shape. Their values do not matter, so the model may change them in place.
        self._zeros: dict[TensorShape, torch.Tensor] = {}
        self.forward = model.forward
        for place, unit in enumerate(units):
            for path in unit.paths:
                module = model.get_submodule(path)
                module.forward = partial(self._call, place, path, module.forward)

    def run_part(self, run: PartRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the part's output. Raises GanglineError `parallelism.model` where the model is no chain. A checked
        run raises ValuesNeeded where the part needs values that this rank does not have."""
        assert self._run is None
        self._run = run
        try:
            with _watching() if run.is_checked else nullcontext():
                result = self.forward(*args, **kwargs)
        except _PartEnd:
            result = None
        finally:
            self._run = None
        if run.last == len(self._units) - 1:
            run.output, run.is_complete = result, True
        if not run.is_complete or (run.first > 0 and not run.is_begun):
            unit = self._units[run.last if run.is_begun or run.first == 0 else run.first]
            raise self.refuse(f"has not run {unit.name} in the order of its definition")
        if run.is_checked:
            self._check_chain(run)
        run.placeholders = []
        return run.output

    def run_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs all units, on a rank that has all parameters meanwhile."""
        self._is_whole = True
        try:
            return self.forward(*args, **kwargs)
        finally:
            self._is_whole = False

    def _call(self, place: int, path: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if run is None:
            # Recomputation of a checkpoint, or a run of the whole model.
            if not self._is_whole and _was_replaced(args):
                raise self.refuse(
                    f"recomputes {path} from an input that was replaced; begin the part at another unit with "
                    "parallelism.split, or checkpoint inside the unit"
                )
            return original(*args, **kwargs)
        if place > run.last:
            if self._units[run.last].end is None and not run.is_complete:
                run.output, run.is_complete = self._first_of(args, path), True
            raise _PartEnd
        if place < run.first:
            if place == run.first - 1 and path == self._units[place].end:
                run.is_begun = True
                return run.received
            return self._placeholder(run, path)
        if run.is_checked:
            self._check_order(run, place, path)
        if place == run.first and not run.is_begun:
            args = self._begin(run, path, args)
        if run.seconds is not None:
            module = self._model.get_submodule(path)
            seconds = measure(partial(original, **kwargs), args, list(module.parameters()))
            run.seconds[place] = run.seconds.get(place, 0.0) + seconds
        result = original(*args, **kwargs)
        if run.is_checked:
            run.described[path] = describe(result, path)
        if place == run.last and path == self._units[place].end:
            run.output, run.is_complete = result, True
        return result

    def _begin(self, run: PartRun, path: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Puts the received value in the place of the first unit's input, where the part before has the modules before
        the first list."""
        run.is_begun = True
        if run.first == 0:
            return args
        if self._units[run.first - 1].end is not None:
            raise self.refuse(f"has not run {self._units[run.first - 1].name} before {path}")
        self._first_of(args, path)._gangline_replaced = True  # type: ignore[attr-defined]  # read by _was_replaced
        return (run.received, *args[1:])

    def _first_of(self, args: tuple[Any, ...], path: str) -> torch.Tensor:
        if not args or not isinstance(args[0], torch.Tensor):
            raise self.refuse(f"calls {path} without a tensor as its first argument; pass the hidden state first")
        return args[0]

    def _placeholder(self, run: PartRun, path: str) -> Any:
        described = run.layout.get(path)
        if described is None:
            # The part that has the module has not called it, or calls it later.
            raise self.refuse(f"calls {path} in another order on another part; make its units one chain")
        if not run.is_checked:
            return described.fill([self._zeros_of(shape) for shape in described.shapes])
        leaves = [shape.make(self._device) for shape in described.shapes]
        for leaf in leaves:
            if leaf.is_floating_point():
                run.placeholders.append(leaf.requires_grad_())
        # Clones, because the model may change them in place.
        return described.fill([leaf.clone() for leaf in leaves])

    def _zeros_of(self, shape: TensorShape) -> torch.Tensor:
        if shape not in self._zeros:
            self._zeros[shape] = shape.make(self._device)
        return self._zeros[shape].detach()

    def _check_order(self, run: PartRun, place: int, path: str) -> None:
        if place < run.newest_unit or path in run.described:
            how = "twice" if path in run.described else f"after {self._units[run.newest_unit].name}"
            raise self.refuse(f"calls {path} {how}; let each unit run once, in the order of its definition")
        run.newest_unit = place

    def _check_chain(self, run: PartRun) -> None:
        reached = _leaves_behind(tensors_of(run.output))
        if any(id(leaf) in reached for leaf in run.placeholders):
            begin = self._units[run.first].name
            raise self.refuse(
                f"has a connection that passes over the beginning of {begin}, as a skip from an earlier layer; choose "
                "other beginnings with parallelism.split, as in split: [blocks.4], or move both ends into one module"
            )

    def refuse(self, text: str) -> GanglineError:
        """Returns the error about a model that is no chain. text: what its forward does, and the way out."""
        return invalid("parallelism.model", f"pipeline cannot cut {class_name(self._model)}, whose forward {text}")


class _UseOfOtherParts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Raises ValuesNeeded where an operation reads a parameter without a value. torch 2.13 returns arbitrary numbers
    for some operations on a CPU tensor and one on the meta device, without an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        needed = [tensor for tensor in tensors_of((args, kwargs or {})) if tensor.is_meta]
        if needed:
            raise ValuesNeeded(needed)
        return func(*args, **(kwargs or {}))


@contextmanager
def _watching() -> Iterator[None]:
    # Compiled modules run as they are written meanwhile.
    with torch.compiler.set_stance("force_eager"), _UseOfOtherParts():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        yield


def _was_replaced(args: tuple[Any, ...]) -> bool:
    return bool(args) and getattr(args[0], "_gangline_replaced", False)


def _leaves_behind(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Returns the ids of the leaves from which these tensors were computed."""
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    leaves = {id(tensor) for tensor in tensors}
    seen: set[Any] = set()
    while pending:
        node: Any = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
        pending.extend(following for following, _ in node.next_functions if following is not None)
    return leaves
