"""Runs a part of a model: the model's own forward, in which the units of other parts do nothing.

Every part calls the forward with the model's real inputs. Units of earlier parts return placeholders, and the last of
them returns the value that came from the part before. The forward ends at the first unit of a later part. So the code
between two units runs on the part of the second one, and masks or positions that blocks get as further arguments are
computed where they are needed. A module beside the lists that runs several times, or in another order than that of its
definition, is such code, see CallOrder.

Where a placeholder reaches the part's output, as with a skip connection, or decides what the model runs, the real
output of its module has to come along with the value from the part before. A run with checks finds these modules. It is
made once for each shape of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared import reentrant
from gangline.pytorch.parallel.shared.ownership import class_name
from gangline.pytorch.parallel.staged.cutting.drawing import SharedDraws
from gangline.pytorch.parallel.staged.cutting.inner import InnerValues
from gangline.pytorch.parallel.staged.cutting.kept_values import KeptValues, replaced
from gangline.pytorch.parallel.staged.cutting.model_state import leaving_no_trace
from gangline.pytorch.parallel.staged.cutting.own_buffers import OwnBuffers
from gangline.pytorch.parallel.staged.cutting.part_run import PartRun
from gangline.pytorch.parallel.staged.cutting.placeholder import Placeholders
from gangline.pytorch.parallel.staged.cutting.watch import (
    CHANGED_BY,
    INSIDE,
    ValuesNeeded,
    changed_name,
    checkpoint_around,
    is_changed,
    versions_by_name,
    versions_of,
)
from gangline.pytorch.parallel.staged.layout import (
    TensorShape,
    are_equal,
    are_same,
    contents_of,
    describe,
    tensors_of,
)
from gangline.pytorch.parallel.staged.timing import measure
from gangline.pytorch.parallel.staged.unit import Unit

# Advice where the last unit of a part was left out, by an early exit or at random.
_WAY_OUT = (
    "; where layers are left out, decide inside of their own forward, or begin the part at another unit with "
    "parallelism.split"
)
_SHAPES_ADVICE = "make shapes depend on the inputs' shapes alone"


class _PartEnd(BaseException):
    """Ends a forward where the next part begins. No Exception, so that a model's own handlers let it pass."""


class CutModel:
    """A model whose units can be left out. All of its modules stay in place. carry: as in Parts. has_several_parts:
    whether this rank has several parts, each of which runs the model's own code."""

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        device: torch.device,
        carry: Sequence[str] = (),
        *,
        has_several_parts: bool = False,
    ) -> None:
        self._model = model
        self._carry = carry
        self._units = units
        self._run: PartRun | None = None
        self._is_whole = False
        self.device = device
        self._placeholders = Placeholders(device)
        self._buffers = OwnBuffers(model, units, has_several_parts=has_several_parts)
        reentrant.install()
        self.forward = model.forward
        for place, unit in enumerate(units):
            for path in unit.paths:
                module = model.get_submodule(path)
                module.forward = partial(self._call, place, path, module.forward)

    def run_part(self, run: PartRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the part's output. Raises GanglineError `parallelism.model` where the model is no chain. Where the
        part needs values that this rank does not have, a run with checks raises ValuesNeeded, and any other one the
        error: the run with checks for these shapes has found no need of them."""
        try:
            return self._run_part(run, args, kwargs)
        except ValuesNeeded as need:
            if need.changed_by:
                raise self._refuse_change(need.changed_by[0], "its input") from None
            if need.inside:
                raise self._refuse_inner(need.inside[0]) from None
            if run.is_checked:
                raise
            raise self._refuse_later(self._with_modules(run, need, args, kwargs)) from None

    def _with_modules(
        self, run: PartRun, need: ValuesNeeded, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ValuesNeeded:
        """Returns the same need with the modules that it is about, of all whose outputs have the same shape. The part
        runs once more for this, without a trace."""
        if len(need.outputs) < 2:
            return need
        again = PartRun(
            run.first,
            run.last,
            run.received,
            run.layout,
            run.carried,
            run.keeps,
            copies_outputs=run.copies_outputs,
            has_own_placeholders=True,
            number=run.number,
        )
        try:
            with leaving_no_trace(self._model, again.watch, self.refuse):
                self._run_part(again, args, kwargs)
        except ValuesNeeded as found:
            return found
        except Exception:  # noqa: BLE001 - a model that behaves differently the second time; the first need is the error
            return need
        return need

    def _run_part(self, run: PartRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._run is None
        self._run = run
        run.watch.draws = SharedDraws(run.number)
        if self._buffers.has_several_parts:
            self._buffers.note(run.versions)
        # As outputs of the part they must not be its inputs any more.
        run.kept = {path: _copy(run.carried[path]) for path in run.keeps if path in run.carried}
        run.versions.note_arguments(tensors_of((args, kwargs)))
        if run.is_checked:
            run.watch.inner = InnerValues()
            run.versions.note_inputs(tensors_of((run.received, run.carried)))
            for path in run.kept:
                run.versions.note_outputs(path, tensors_of(run.carried[path]))
        # Compiled modules run as they are written in a run with checks.
        eager = torch.compiler.set_stance("force_eager") if run.is_checked else nullcontext()
        try:
            with eager, self._without_kept(run), run.watch.watching(partial(self._check_graph, run)):
                result = self.forward(*args, **kwargs)
        except _PartEnd:
            result = None
        finally:
            self._run = None
        if run.last == len(self._units) - 1:
            run.output, run.is_complete = result, True
        if not run.is_complete or (run.first > 0 and not run.is_begun):
            raise self._left_out(run)
        conflict = self._buffers.conflict(run.versions)
        if conflict is not None:
            raise self.refuse(conflict)
        run.watch.check_inner((run.output, run.kept))
        needed = run.watch.marks.sources_of((run.output, run.kept))
        if needed:
            raise ValuesNeeded(sources=needed)
        return run.output

    @contextmanager
    def _without_kept(self, run: PartRun) -> Iterator[None]:
        """Puts placeholders in the place of what units of earlier parts keep, in a run with checks."""
        with ExitStack() as stack:
            for unit in self._units[: run.first] if run.is_checked else ():
                for path in unit.paths:
                    described = run.layout.get(path)
                    make = partial(self._make_kept, run, path)
                    if described is not None and described.kept:
                        stack.enter_context(replaced(self._model.get_submodule(path), described.kept, make))
            yield

    def _make_kept(self, run: PartRun, path: str, shape: TensorShape) -> torch.Tensor:
        placeholder = self._placeholders.make(shape, is_own=True)
        run.watch.marks.add(placeholder, frozenset((INSIDE + path,)))
        return placeholder

    def run_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs all units, on a rank that has all parameters meanwhile."""
        self._is_whole = True
        try:
            return self.forward(*args, **kwargs)
        finally:
            self._is_whole = False

    def change_forwards(self, change: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `change(path, forward)` in the place of each unit module's own forward."""
        for unit in self._units:
            for path in unit.paths:
                module = self._model.get_submodule(path)
                place, _, forward = cast(partial[Any], module.forward).args
                module.forward = partial(self._call, place, path, change(path, forward))

    def _call(self, place: int, path: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        run = self._run
        if run is not None and run.watch.is_in_unit:
            # A unit's own code runs a module that it has in common with the model.
            return original(*args, **kwargs)
        self._before_call(path, args)
        if run is None:
            # Recomputation of a checkpoint, or a run of the whole model.
            return original(*args, **kwargs)
        if self._runs_as_code(run, place, path):
            return self._run_code(run, place, path, partial(original, *args, **kwargs))
        if place > run.last:
            if self._units[run.last].end is None and not run.is_complete:
                self._complete(run, self._first_of(args, path))
            raise _PartEnd
        conflict = run.order.note(place, path)
        if conflict is not None:
            raise self.refuse(conflict)
        if place < run.first:
            return self._skip(run, place, path, args, kwargs)
        if run.is_checked:
            self._check_checkpoint(run, path)
        if place == run.first and not run.is_begun:
            args = self._begin(run, path, args)
        # What the unit makes of values of its own rank needs no watch.
        is_paused = not run.is_checked and not run.watch.marks.sources_of((args, kwargs))
        with run.watch.in_unit(is_paused=is_paused):
            result = self._run_module(run, place, path, partial(original, **kwargs), args)
        if place == run.last and path == self._units[place].end:
            self._complete(run, result)
        return result

    def _skip(self, run: PartRun, place: int, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what a module of an earlier part has returned, or a placeholder for it."""
        if run.is_checked:
            run.checkpoint = checkpoint_around()
        if place != run.first - 1 or path != self._units[place].end:
            return self._placeholder(run, path, (args, kwargs))
        run.is_begun = True
        self._note_changes(run, path, (args, kwargs))
        is_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        if is_tensor and checkpoint_around() is not None and run.watch.marks.sources_of(args[0]):
            # Code behind the unit in its checkpoint would run again with the unit, from a placeholder.
            args[0]._gangline_replaced = True  # read by _was_replaced
        return run.received

    def _runs_as_code(self, run: PartRun, place: int, path: str) -> bool:
        """Whether a call of a module is like code between units, which every part runs with the values that it has."""
        unit = self._units[place]
        if path == unit.end:
            return False
        if place > run.last and not run.is_complete:
            return True
        if place < run.first:
            # A call that the part of the unit has not described is none of the unit.
            return path not in run.layout or run.order.is_code(place, path, unit)
        return (run.first > 0 and not run.is_begun) or run.order.is_code(place, path, unit)

    def _run_code(self, run: PartRun, place: int, path: str, call: partial[Any]) -> Any:
        """Runs a module as code of the model. A run with checks gets its parameters for this rank."""
        module = self._model.get_submodule(path)
        before = versions_by_name(dict(module.named_buffers())) if run.is_checked else {}
        try:
            result = call()
        except ValuesNeeded as need:
            if run.is_checked or not need.parameters or place <= run.last:
                raise
            # It follows on a unit of this part that was there in the first batch.
            raise self._left_out(run) from None
        if before and changed_name(before, dict(module.named_buffers())) is not None:
            raise self.refuse(
                f"runs {path} twice, or in another order than that of its definition, and {path} changes its buffers; "
                "let it run once, in that order"
            )
        return result

    def _left_out(self, run: PartRun) -> GanglineError:
        unit = self._units[run.last if run.is_begun or run.first == 0 else run.first]
        return self.refuse(f"has not run {unit.name} in the order of its definition{_WAY_OUT}")

    def _run_module(self, run: PartRun, place: int, path: str, original: partial[Any], args: tuple[Any, ...]) -> Any:
        if run.seconds is not None:
            parameters = list(self._model.get_submodule(path).parameters())
            run.seconds[place] = run.seconds.get(place, 0.0) + measure(original, args, parameters)
        arguments = run.versions.arguments()
        result = self._run_checked(run, path, original, args) if run.is_checked else original(*args)
        has_later = run.last < len(self._units) - 1
        if has_later and is_changed(arguments):
            raise self.refuse(
                f"changes the model's own input in place inside of {path}, and other parts have the input as it was; "
                f"leave inplace=True out of {path}, or change a copy"
            )
        if has_later and not run.is_checked:
            self._check_result(run, path, result)
        if path in run.keeps:
            run.kept[path] = self._take(run, path, result)
        return result

    def _run_checked(self, run: PartRun, path: str, original: partial[Any], args: tuple[Any, ...]) -> Any:
        """Runs a module of a unit, and describes what it returns, changes and keeps."""
        inner, inputs = run.watch.inner, (args, original.keywords)
        assert inner is not None
        before, given, contents = run.versions.outputs(), versions_of(tensors_of(inputs)), contents_of(inputs)
        values = KeptValues(self._model.get_submodule(path))
        inner.enter(path, inputs)
        result = original(*args)
        inner.leave(result)
        outputs = tensors_of(result)
        kept = values.changed(
            lambda value: inner.unit_of(value) is not None or any(value is output for output in outputs)
        )
        if run.last < len(self._units) - 1 and not are_same(contents, inputs):
            raise self.refuse(
                f"gives {path} a list, dictionary or object that {path} changes, and other parts have it as it was; "
                f"let {path} return what it adds"
            )
        changed = run.versions.changed_since(before)
        if changed is not None:
            raise self._refuse_change(path, f"the output of {changed}")
        run.described[path] = describe(result, path, changes_input=is_changed(given), kept=kept)
        return result

    def _check_result(self, run: PartRun, path: str, result: Any) -> None:
        """Refuses an output of a unit that later parts, which have the description of the first one, would take for
        another one."""
        known = run.layout.get(path)
        if known is None:
            return
        now = describe(result, path)
        if now.shapes != known.shapes:
            raise self.refuse(
                f"returns other shapes or types from {path} for inputs of the same shapes; {_SHAPES_ADVICE}"
            )
        if not are_equal(now, known):
            raise self.refuse(
                f"returns other plain values from {path} than in the first batch of this shape, and other parts have "
                "those; return what changes from batch to batch as a tensor"
            )

    def _complete(self, run: PartRun, output: Any) -> None:
        run.output, run.is_complete = self._take(run, "", output), True
        missing = next((path for path in run.keeps if path not in run.kept), None)
        if missing is not None:
            raise self.refuse(f"has left out {missing}, whose output a later part needs{_WAY_OUT}")

    def _take(self, run: PartRun, path: str, output: Any) -> Any:
        """Returns a module's output for later parts. These run the code between the units too, so they need the output
        as it is now, before that code changes it in place."""
        run.versions.note_outputs(path, tensors_of(output))
        return _copy(output) if run.copies_outputs or run.is_checked else output

    def _before_call(self, path: str, args: tuple[Any, ...]) -> None:
        """Refuses recomputations that cannot be right. Notes the model's own buffers."""
        if self._run is None:
            if not self._is_whole and _was_replaced(args):
                raise self.refuse(
                    f"recomputes {path} from an input that was replaced; begin the part at another unit with "
                    "parallelism.split, or checkpoint inside the unit"
                )
        elif reentrant.is_inside():
            raise self.refuse(
                f"calls {path} in a reentrant checkpoint, which would recompute it from inputs that this part does not "
                "have; pass use_reentrant=False to torch.utils.checkpoint, or leave it out and set "
                "parallelism.activation_checkpointing: blocks"
            )
        else:
            self._buffers.note(self._run.versions)

    def _begin(self, run: PartRun, path: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Puts the received value in the place of the first unit's input, where the part before has the modules before
        the first list."""
        run.is_begun = True
        if run.first == 0:
            return args
        if self._units[run.first - 1].end is not None:
            raise self.refuse(f"has not run {self._units[run.first - 1].name} before {path}{_WAY_OUT}")
        self._first_of(args, path)._gangline_replaced = True  # type: ignore[attr-defined]  # read by _was_replaced
        return (run.received, *args[1:])

    def _first_of(self, args: tuple[Any, ...], path: str) -> torch.Tensor:
        if not args or not isinstance(args[0], torch.Tensor):
            raise self.refuse(f"calls {path} without a tensor as its first argument; pass the hidden state first")
        return args[0]

    def _check_graph(self, run: PartRun, name: str, hooked: torch.Tensor | None) -> None:
        """Refuses gradients that the model's own code computes or changes, as a part has the graph of its units alone.
        Tensors that the last part has made by itself may have hooks."""
        if run.watch.is_in_unit:
            return
        is_last = run.last == len(self._units) - 1
        is_own = not any(hooked is tensor for tensor in tensors_of((run.received, run.carried)))
        if hooked is None or not is_last or not is_own or run.watch.marks.sources_of(hooked):
            raise self.refuse(
                f"calls {name} between its units, and each part has the graph of its own units alone; call it inside "
                "of a unit, or use ddp"
            )

    def _note_changes(self, run: PartRun, path: str, inputs: Any) -> None:
        """Marks what a unit of an earlier part has changed in place: this part has it as it was."""
        described = run.layout.get(path)
        if described is not None and described.changes_input:
            run.watch.marks.add(inputs, frozenset((CHANGED_BY + path,)))

    def _placeholder(self, run: PartRun, path: str, inputs: Any) -> Any:
        self._note_changes(run, path, inputs)
        if path in run.carried:
            return run.carried[path]
        described = run.layout.get(path)
        if described is None:
            # The part that has the module has not called it, or calls it later.
            raise self.refuse(
                f"calls {path}, which it has left out or called later when the first batch of this shape was checked; "
                f"run all units in the order of their definition{_WAY_OUT}"
            )
        is_own = run.is_checked or run.has_own_placeholders
        with run.watch.pausing():
            tensors = [self._placeholders.make(shape, is_own=is_own) for shape in described.shapes]
        run.watch.marks.add(tensors, frozenset((path,)))
        return described.fill(tensors)

    def _check_checkpoint(self, run: PartRun, path: str) -> None:
        if run.checkpoint is not None and run.checkpoint is checkpoint_around():
            raise self.refuse(
                f"runs {path} in one checkpoint with a unit of an earlier part, which would be recomputed too; give "
                "each unit a checkpoint of its own, or choose other beginnings with parallelism.split"
            )

    def names_of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Returns the names of parameters. Raises GanglineError for tensors that are none of the model."""
        name_by_id = {id(parameter): name for name, parameter in self._model.named_parameters()}
        if any(id(parameter) not in name_by_id for parameter in parameters):
            raise self.refuse(
                "uses a value of another part that is no parameter of the model; compute it in the forward of the unit"
            )
        return [name_by_id[id(parameter)] for parameter in parameters]

    def _refuse_change(self, path: str, what: str) -> GanglineError:
        return self.refuse(
            f"changes {what} in place inside of {path}, and a later part needs it as it was; leave inplace=True out of "
            f"{path}, or give it a copy"
        )

    def _refuse_inner(self, path: str) -> GanglineError:
        return self.refuse(
            f"uses a value that {path} computes and does not return, so that other stages do not have it; let {path} "
            "return it, and pass it on"
        )

    def _refuse_later(self, need: ValuesNeeded) -> GanglineError:
        if need.parameters:
            return self.refuse_late_use(self.names_of(need.parameters))
        carry = ", ".join(sorted({*self._carry, *need.outputs}))
        return self.refuse(
            f"needs the output of {' and '.join(need.outputs)} in a later part, and did not in the first batch of this "
            f"shape; set parallelism.carry: [{carry}], so that it goes along in every batch"
        )

    def refuse_late_use(self, names: Sequence[str]) -> GanglineError:
        """Returns the error about parameters of other parts that the first batch has not used."""
        return self.refuse(
            f"uses {', '.join(names)} outside of its module, and did not in the first batch of this shape; use it in "
            "every batch, or inside of its unit"
        )

    def refuse(self, text: str) -> GanglineError:
        """Returns the error about a model that is no chain. text: what its forward does, and the way out."""
        return invalid("parallelism.model", f"pipeline cannot cut {class_name(self._model)}, whose forward {text}")


def _copy(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.clone(), value)


def _was_replaced(args: tuple[Any, ...]) -> bool:
    return bool(args) and getattr(args[0], "_gangline_replaced", False)
