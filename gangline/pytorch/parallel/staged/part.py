"""Runs this rank's parts of a model, and passes values from part to part outside of a schedule.

Owns the layouts: descriptions of all values inside the model, one for each shape of its inputs. The first run with a
shape makes it, and checks the model. Used by the strategy `pipeline` and by its training batches.

What goes from part to part is a pair: the value between their units, and by path those outputs of earlier modules that
this or a later part needs, as skip connections do. The last part's output is the model's alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gangline.core.beat import EXCHANGE, FORWARD, Beat, NoBeat
from gangline.errors import GanglineError
from gangline.pytorch.data import seed
from gangline.pytorch.parallel.staged.absent import Absent, origin_of
from gangline.pytorch.parallel.staged.cutting.collected import Collected, Growing
from gangline.pytorch.parallel.staged.cutting.cut import CutModel
from gangline.pytorch.parallel.staged.cutting.drawing import DrawNumbers
from gangline.pytorch.parallel.staged.cutting.lost import Lost
from gangline.pytorch.parallel.staged.cutting.model_state import ModelState, leaving_no_trace
from gangline.pytorch.parallel.staged.cutting.part_run import PartRun
from gangline.pytorch.parallel.staged.cutting.state_changes import StateChanges, conflict_between
from gangline.pytorch.parallel.staged.cutting.watch import ValuesNeeded
from gangline.pytorch.parallel.staged.group import Replicas
from gangline.pytorch.parallel.staged.layout import (
    Described,
    decode,
    describe,
    encode,
    signature_of,
    tensors_of,
    without_objects,
)
from gangline.pytorch.parallel.staged.timing import ROUNDS
from gangline.pytorch.parallel.staged.unit import Unit
from gangline.pytorch.parallel.staged.unit_division import UnitDivision

# Name of a part's output among its modules' descriptions. No module has an empty name.
_OUTPUT = ""


@dataclass(slots=True)
class Layout:
    """Descriptions of the outputs of all units' modules, and of all parts."""

    modules: dict[str, Described] = field(default_factory=dict)
    crossing: list[Described] = field(default_factory=list)
    # paths of the modules whose outputs go along from each part to the next, in the order of the parts
    carried: list[list[str]] = field(default_factory=list)
    # attributes of units of other ranks with their content after each run, see Lost
    lost: list[tuple[nn.Module, str, Lost]] = field(default_factory=list)
    # what the model's own code changes in each part, see StateChanges
    changes: list[dict[str, str]] = field(default_factory=list)
    replaced: dict[str, bool] = field(default_factory=dict)  # what the model's own code replaces, see StateChanges
    # names of what units of other ranks and their hooks put into lists, dictionaries and objects
    collected: set[str] = field(default_factory=set)
    growing: list[Growing] = field(default_factory=list)  # lists to which the last part adds, on its rank


class Parts:
    """The parts of one model. units, counts, schedule: see UnitDivision. borrow: gives all ranks of the replica the
    value of a parameter, by name; these ranks call it in step. numbers: of the random numbers, one for each call of the
    model. carry: paths of modules whose outputs go along to all later parts, whether these need them or not.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        counts: Sequence[int],
        *,
        replicas: Replicas,
        schedule: str,
        borrow: Callable[[str], None],
        numbers: DrawNumbers,
        carry: Sequence[str] = (),
    ) -> None:
        self.numbers = numbers
        self._borrow = borrow
        self._carry = carry
        self.model = model
        self._replicas = replicas
        self.division = UnitDivision(units, counts, replicas, schedule)
        self.cut = CutModel(model, units, replicas.device, carry, has_several_parts=len(self.division.own) > 1)
        self._layouts: dict[Any, Layout] = {}
        self.beat: Beat = NoBeat()
        # Parts in which the model changes in place what came from other parts, which are leaves that record gradients,
        # what goes to other parts, or what the model itself is called with.
        self._changes_inputs: set[int] = set()
        self._changes_outputs: set[int] = set()
        self._changes_arguments: set[int] = set()

    def redivide(self, counts: Sequence[int]) -> None:
        """Changes the number of units of each part. Layouts are made anew."""
        self.division.redivide(counts)
        self._layouts.clear()
        self._changes_inputs.clear()
        self._changes_outputs.clear()
        self._changes_arguments.clear()

    def measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, float]:
        """Returns the seconds of each unit of this rank for a microbatch. All ranks of the replica call it in step.

        The fastest of some rounds over all units counts, because other work on the machine may slow down one unit in
        all of its passes that follow one another.
        """
        rounds = [self._measure_once(args, kwargs) for _ in range(ROUNDS)]
        return {place: min(each[place] for each in rounds) for place in rounds[0]}

    def _measure_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, float]:
        seconds: dict[int, float] = {}
        layout = self.layout_for(args, kwargs)
        crossing: Any = None
        with torch.no_grad():
            for part in range(self.division.count):
                if part in self.division.own:
                    run = self._make_run(part, crossing, layout)
                    run.seconds = seconds
                    with self._leaving_no_trace(run, (args, kwargs)):
                        crossing = self._run_part(part, run, layout, *_copy_of((args, kwargs)))
                if part + 1 < self.division.count:
                    crossing = self._pass_on(part, crossing, layout)
        return seconds

    def _make_run(self, part: int, crossing: Any, layout: Layout, number: int = 0) -> PartRun:
        """Returns the run of a part that has not begun. crossing: what came from the part before. number: of the random
        numbers, as in SharedDraws."""
        first, last = self.division.range_of(part)
        received, carried = crossing if part else (None, {})
        before = self.division.end_of(part - 1) if part else None
        if before is not None:
            carried = {**carried, before: received}
        is_copied = part in self._changes_outputs
        keeps = layout.carried[part]
        return PartRun(
            first,
            last,
            received,
            layout.modules,
            carried=carried,
            keeps=keeps,
            copies_outputs=is_copied,
            number=number,
        )

    def _run_part(self, part: int, run: PartRun, layout: Layout, args: Any, kwargs: Any) -> Any:
        """Runs a part. Returns what goes to the next part, or the model's output."""
        output = self.cut.run_part(run, args, kwargs)
        if part + 1 == self.division.count:
            return without_objects(output)
        return output, {path: run.kept[path] for path in run.keeps}

    def modules_of(self, part: int) -> list[nn.Module]:
        return [self.model.get_submodule(path) for unit in self.division.units_of(part) for path in unit.paths]

    @contextmanager
    def _named(self, part: int) -> Iterator[None]:
        """Gives an error of the model's own code a note with the stage and its rank. Refusals name what they refuse."""
        try:
            yield
        except (GanglineError, ValuesNeeded):
            raise
        except Exception as error:
            error.add_note(f"in {self.division.describe_place(part)}")
            raise

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the shapes of a model's inputs, for which there is one layout in each autocast."""
        kind = self._replicas.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return self.model.training, autocast, signature_of((args, kwargs))

    def layout_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
        """Returns the layout for inputs of these shapes. All ranks of the replica call it in step."""
        key = self.key_of(args, kwargs)
        if key not in self._layouts:
            with torch.no_grad():
                self._layouts[key] = self._make_layout(args, kwargs)
        return self._layouts[key]

    def run(
        self, part: int, received: Sequence[torch.Tensor], layout: Layout, args: Any, kwargs: Any, *, number: int = 0
    ) -> Any:
        """Returns what one of this rank's parts gives to the next one, or the model's output. received: the tensors of
        the part before. number: as in SharedDraws."""
        tensors = [tensor.clone() for tensor in received] if part in self._changes_inputs else list(received)
        crossing = layout.crossing[part - 1].fill(tensors) if part else None
        if part in self._changes_arguments and part + 1 < self.division.count:
            # Another part on this rank begins with them as they are. The last one changes them as the model does.
            args, kwargs = _copy_of((args, kwargs))
        run = self._make_run(part, crossing, layout, number)
        growing = layout.growing if part + 1 == self.division.count and torch.is_grad_enabled() else []
        left = next((each for each in growing if each.is_left), None)
        if left is not None:
            raise self.cut.refuse(
                f"adds values of several microbatches to {left.place}; take them out in train_batch behind the loss "
                "and not before the model, or let the model return them"
            )
        output = self._run_part(part, run, layout, args, kwargs)
        for each in growing:
            each.note()
        absent = next((tensor for tensor in tensors_of(output) if isinstance(tensor, Absent)), None)
        if absent is not None:
            raise self.cut.refuse_late_use([origin_of(absent).name])
        if part + 1 < self.division.count:
            self._check_changes(part, run)
        for module, name, lost in layout.lost:
            vars(module)[name] = lost
        shapes = describe(output, self.division.name_of(part)).shapes
        if shapes != layout.crossing[part].shapes:
            raise self.cut.refuse(
                f"returns other shapes or types from {self.division.name_of(part)} for inputs of the same shapes; "
                "make shapes depend on the inputs' shapes alone"
            )
        return output

    def _check_changes(self, part: int, run: PartRun) -> None:
        """Refuses a run that changes in place what other parts have, and was not prepared for it."""
        for name, is_changed, parts in (
            ("an output of its units", run.versions.changes_outputs, self._changes_outputs),
            ("its own input", run.versions.changes_arguments, self._changes_arguments),
        ):
            if is_changed and part not in parts:
                raise self.cut.refuse(
                    f"changes {name} in place, and did not in the first batch of this shape; change a copy, or change "
                    "it in every batch"
                )

    @torch.no_grad()
    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], where: int = FORWARD, *, number: int = 0) -> Any:
        """Returns the model's output on all ranks of the replica, without gradients. These ranks call it in step.
        where: recorded in the beat while this rank computes. number: as in SharedDraws."""
        layout = self.layout_for(args, kwargs)
        value: Any = None
        for part in range(self.division.count):
            if part in self.division.own:
                self.beat.stay(where)
                with self._named(part):
                    value = self.run(part, tensors_of(value) if part else (), layout, args, kwargs, number=number)
            self.beat.stay(EXCHANGE)
            if part + 1 < self.division.count:
                value = self._pass_on(part, value, layout)
        output = self.share_output(value, layout)
        self.beat.stay(where)
        return output

    def _make_layout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
        """Runs all parts with checks, without a trace. Begins again where a part needs outputs of earlier modules. They
        go along then."""
        needs: list[set[str]] = [set() for _ in range(self.division.count)]
        # The last part has all of them behind itself but its own.
        needs[-1] |= set(self._carry)
        while True:
            layout = Layout(carried=self.division.carried_for(needs))
            value: Any = None
            for part in range(self.division.count):
                value, outputs = self._check(part, value, layout, (args, kwargs))
                if outputs:
                    needs[part] |= outputs
                    break
                if part + 1 < self.division.count:
                    value = self._pass_on(part, value, layout)
            else:
                layout.lost = self._find_lost(layout)
                return layout

    def _find_lost(self, layout: Layout) -> list[tuple[nn.Module, str, Lost]]:
        """Returns the attributes in which units of other ranks keep values of their own. Modules that others use too
        are left out."""
        found = []
        part_of = self.division.part_of_paths()
        others = {path: part for path, part in part_of.items() if part not in self.division.own}
        here = {
            id(module)
            for name, module in self.model.named_modules(remove_duplicate=False)
            if not any(name == path or name.startswith(f"{path}.") for path in others)
        }
        for path, part in others.items():
            for kept in layout.modules[path].kept if path in layout.modules else ():
                module = self.model.get_submodule(f"{path}.{kept.path}" if kept.path else path)
                if kept.has_graph and kept.name not in module._buffers and id(module) not in here:
                    name = ".".join(filter(None, (path, kept.path, kept.name)))
                    found.append((module, kept.name, Lost(name, path, self.division.name_of(part))))
        return found

    def share_output(self, value: Any, layout: Layout) -> Any:
        """Returns the model's output on all ranks of the replica. value: the output, on the rank of the last part."""
        described = layout.crossing[-1]
        tensors = (
            [tensor.detach().contiguous() for tensor in tensors_of(value)]
            if self.division.has_last
            else [shape.make(self._replicas.device) for shape in described.shapes]
        )
        self._replicas.share(tensors, self.division.last_place)
        return value if self.division.has_last else described.fill(tensors)

    def _check(self, part: int, crossing: Any, layout: Layout, inputs: tuple[Any, Any]) -> tuple[Any, set[str]]:
        """Runs a part with checks, and adds its descriptions to the layout on all ranks. A run that needs parameters of
        other ranks is repeated with these. Returns what it gives to the next part, on its own rank, and the paths of
        modules whose outputs it lacks, on all ranks."""
        is_own, place = part in self.division.own, self.division.place_of[part]
        while True:
            self.beat.stay(FORWARD if is_own else EXCHANGE)
            output, described, need = self._try_check(part, crossing, layout, inputs) if is_own else (crossing, {}, {})
            needed = json.loads(self._replicas.share_bytes(json.dumps(need).encode() if is_own else None, place))
            if "changes" in needed:
                break
            if needed["outputs"]:
                return None, set(needed["outputs"])
            for name in needed["parameters"]:
                self._borrow(name)
        conflict = conflict_between(layout.changes[-1], needed["changes"]) if layout.changes else None
        if conflict is not None:
            raise self.cut.refuse(conflict)
        layout.changes.append(needed["changes"])
        layout.collected |= set() if is_own else set(needed["collected"])
        decoded = decode(self._replicas.share_bytes(encode(described) if is_own else None, place))
        layout.crossing.append(decoded.pop(_OUTPUT))
        layout.modules |= decoded
        return output, set()

    def _try_check(
        self, part: int, crossing: Any, layout: Layout, inputs: tuple[Any, Any]
    ) -> tuple[Any, dict[str, Described], dict[str, Any]]:
        """Returns what a part gives to the next one, the descriptions, and what it needs besides: names of parameters
        and paths of modules; where it needs nothing, what it changes. Everything is as before afterwards, because the
        part runs again."""
        run = self._make_checked_run(part, crossing, layout)
        numbers = seed.capture()
        try:
            with self._leaving_no_trace(run, inputs) as state, torch.enable_grad(), self._named(part):
                output = self._run_part(part, run, layout, *_copy_of(inputs))
                collected = self._check_collected(part, run, layout, state)
                changes = StateChanges(self.model, state, has_several_parts=len(self.division.own) > 1)
                if changes.is_any:
                    seed.restore(numbers)
                    self._run_again(part, crossing, layout, inputs, state)
                conflict, own_changes = changes.compare(layout.replaced)
                if conflict is not None:
                    raise self.cut.refuse(conflict)
        except ValuesNeeded as need:
            return crossing, {}, {"parameters": self.cut.names_of(need.parameters), "outputs": need.outputs}
        finally:
            self.beat.stay(EXCHANGE)
        versions = run.versions
        if versions.changes_inputs:
            self._changes_inputs.add(part)
        if versions.changes_outputs:
            self._changes_outputs.add(part)
        if versions.changes_arguments:
            self._changes_arguments.add(part)
        described = {**run.described, _OUTPUT: describe(output, self.division.name_of(part))}
        if part + 1 < self.division.count and any(shape.dtype.is_complex for shape in described[_OUTPUT].shapes):
            raise self.cut.refuse(
                f"gives complex numbers from {self.division.name_of(part)} to the next one, through which schedules "
                "send no gradients; give them on as torch.view_as_real, or begin the part elsewhere with "
                "parallelism.split"
            )
        return (
            tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), output),
            described,
            {
                "changes": own_changes,
                "collected": collected.places(),
            },
        )

    def _check_collected(self, part: int, run: PartRun, layout: Layout, state: ModelState) -> Collected:
        """Raises ValuesNeeded for outputs of earlier units that hooks keep on the last part."""
        collected = Collected(self.model, state)
        if part + 1 < self.division.count:
            assert run.watch.inner is not None
            conflict = collected.conflict(run.watch.inner.is_computed)
            if conflict is not None:
                raise self.cut.refuse(conflict)
            return collected
        need = ValuesNeeded(sources=run.watch.marks.sources_of(collected.tensors))
        if need.outputs:
            raise ValuesNeeded(sources=need.outputs)
        layout.growing = collected.growing()
        return collected

    def _make_checked_run(self, part: int, crossing: Any, layout: Layout) -> PartRun:
        copied = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), crossing)
        run = self._make_run(part, copied, layout)
        run.is_checked = True
        return run

    def _run_again(self, part: int, crossing: Any, layout: Layout, inputs: tuple[Any, Any], state: ModelState) -> None:
        """Runs a part a second time, from the state that the first run has left."""
        run = self._make_checked_run(part, crossing, layout)
        run.watch.note_write = state.memory.note_write
        try:
            self._run_part(part, run, layout, *_copy_of(inputs))
        except (Exception, ValuesNeeded):  # noqa: BLE001 - a model that behaves differently the second time has changed
            return

    def _leaving_no_trace(self, run: PartRun, inputs: tuple[Any, Any]) -> AbstractContextManager[ModelState]:
        given = [leaf for leaf in tree_leaves(inputs) if not isinstance(leaf, torch.Tensor)]
        units = [(path, part) for path, part in self.division.part_of_paths().items()]
        return leaving_no_trace(self.model, run.watch, self.cut.refuse, given, units)

    def _pass_on(self, part: int, value: Any, layout: Layout) -> Any:
        """Gives what a part has made to the next part. Returns it on the rank of the next part."""
        source, target, place = self.division.place_of[part], self.division.place_of[part + 1], self._replicas.place
        if source == target or place not in (source, target):
            return value
        if place == source:
            self._replicas.send(tensors_of(value), target)
            return None
        return layout.crossing[part].fill(self._replicas.receive(layout.crossing[part].shapes, source))


def _copy_of(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of the model with tensors of their own, which a run may change in place."""
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        # A tensor that is there twice stays one.
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.clone()
        return copies[id(tensor)]

    copied: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(torch.Tensor, copy, inputs)
    return copied
