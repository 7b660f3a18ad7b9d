"""Runs the first batch of a trial that is built for a plan, and counts what its passes keep and compute."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from gangline.pytorch.data.batch_data import count_records, move
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.parallel.staged.cutting.call_order import CallOrder
from gangline.pytorch.parallel.staged.cutting.marks import storages_of
from gangline.pytorch.parallel.staged.layout import tensors_of
from gangline.pytorch.parallel.staged.unit import Unit
from gangline.pytorch.plan.connections import ConnectionWatch
from gangline.pytorch.plan.device_rules import DeviceRules
from gangline.pytorch.plan.model_size import Connection, Moment
from gangline.pytorch.plan.planning_context import PlanningContext, Reached
from gangline.pytorch.plan.recurrent import LstmOfCpu
from gangline.pytorch.plan.refusal import left_out
from gangline.pytorch.plan.step_peak import OperationCounter, StepPeak


@dataclass(slots=True)
class Passes:
    """What the passes of one batch keep and compute.

    Lists have one entry for each unit, or a single entry for a model without units.
    """

    records: int  # number of records of the batch
    activation_bytes: list[float]  # kept by the forward pass
    output_bytes: list[float]
    passed_bytes: list[float]  # bytes of a unit's output, if the unit keeps none of it
    taken_bytes: list[float]  # the part of activation_bytes that is the output of the unit before
    copied_bytes: list[float]  # parameters' copies in half precision, which activation_bytes does not count
    flops: list[float]  # operations of the forward pass
    peak_bytes: list[float]  # the most bytes in the unit's own passes; 0 if not known
    batch_bytes: float = 0.0  # bytes of the batch's own tensors, which no other field counts
    kernels: int = 0  # number of operations that the forward pass issued
    convolved: float = 0.0  # the part of all operations in convolutions, 0 to 1, as in OperationCounter
    all_flops: float = 0.0  # operations of both passes; 0 if the backward pass failed
    all_kernels: int = 0  # number of operations that both passes issued; 0 if the backward pass failed
    moments: tuple[Moment, ...] = ()  # those that need most memory; empty if the backward pass failed
    # outputs of units that later units need besides the output of the unit before
    connections: tuple[Connection, ...] = ()
    problem: Exception | None = None  # the exception that ended the backward pass; None if it ended well
    # bytes read and written by all operations that compute no products: in the forward pass, or in both passes once the
    # backward pass has ended
    streamed_bytes: float = 0.0

    @classmethod
    def of_none(cls, num_units: int, records: int = 1) -> Self:
        """Returns those of no pass."""
        kept, outputs, passed, taken, copied, flops, peaks = ([0.0] * max(1, num_units) for _ in range(7))
        return cls(records, kept, outputs, passed, taken, copied, flops, peaks)


def measure_passes(
    trial: Any, context: PlanningContext, units: Sequence[Unit], carry: Sequence[str], *, is_gpu: bool
) -> Passes:
    """Returns what the first batch's passes keep and compute, those of the first model for each unit. carry: the option
    of that name. is_gpu: whether the slots are GPUs. The context gets notes of what strategies may refuse."""
    batch = move(_first_batch(trial.build_training_data_loader(), context.get_trial_seed()), context.device)
    for each in context.models:
        each.train()
    meter = _Meter(context, units, carry, batch, is_gpu=is_gpu)
    context.on_backward = meter.on_backward
    with (
        meter.counting(),
        meter.rules if context.device.type == "meta" else nullcontext(),
        nullcontext() if is_gpu else LstmOfCpu(meter.rules.to_half),
        context.autocast(),
    ):
        _train(trial, batch, context)
    return meter.found


def _first_batch(loader: Any, trial_seed: int) -> Any:
    if isinstance(loader, DataLoader):
        return next(iter(loader.get_data_loader(repeat=True, seed=trial_seed)))
    return next(iter(loader))


def _train(trial: Any, batch: Any, context: PlanningContext) -> None:
    """Runs train_batch. An exception after its first backward pass, as for reading a value on the meta device, ends the
    run and is no problem."""
    try:
        trial.train_batch(batch, 0, 0)
    except (Exception, SystemExit, Reached) as error:
        if not isinstance(error, Reached) and not context.observed.num_backwards:
            raise


class _Meter:
    """Counts the passes of one batch until the first backward pass has ended. found: what was counted so far. rules:
    those of the slots, whose copies it counts."""

    def __init__(
        self, context: PlanningContext, units: Sequence[Unit], carry: Sequence[str], batch: Any, *, is_gpu: bool
    ) -> None:
        self._context = context
        self._units = units
        self._model = model = context.models[0]
        self.found = Passes.of_none(len(units), max(1, count_records(batch)))
        self._peak = StepPeak(context.models, batch, context.device)
        self._live_bytes = self._peak.counting()
        self._operations = OperationCounter()
        self.rules = DeviceRules(is_gpu, self._on_copy)
        self._connections = ConnectionWatch(model, units, carry)
        given = {storage._cdata: storage for storage in storages_of(tensors_of(batch))}
        self.found.batch_bytes = float(sum(storage.nbytes() for storage in given.values()))
        # The models' and the batch's own storages, all of which stay.
        self._own = set(given) | {
            tensor.untyped_storage()._cdata
            for each in context.models
            for tensor in (*each.parameters(), *each.buffers())
        }
        # Each storage with the unit that keeps it. They stay alive, so that no later one gets the address of one of
        # these.
        self._kept: dict[int, tuple[torch.UntypedStorage, int]] = {}
        # The newest unit that has ended, and the storages of its output that it does not keep.
        self._passed: tuple[int, list[weakref.ref[torch.UntypedStorage]]] = 0, []
        self._place = 0
        self._order = CallOrder()
        # Modules of units that run at present.
        self._depth = 0
        self._counted_flops = 0
        self._is_done = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        called = self._model.register_forward_pre_hook(lambda *_: self._on_call())
        saved = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        try:
            with (
                _watch(self._model, self._units, self._on_module, self._after_module, self._leave),
                self._connections.watching(),
                saved,
                self._live_bytes,
                self._operations,
            ):
                yield
        finally:
            called.remove()

    def _on_copy(self, copy: torch.Tensor) -> None:
        self._peak.add_copy(copy)
        if not self._is_done:
            self.found.copied_bytes[self._place] += copy.nbytes

    def on_backward(self, loss: torch.Tensor) -> None:
        """Runs the first backward pass, where the loss has one, and ends the counting."""
        found = self.found
        self._begin_unit(self._place)
        found.kernels = self._live_bytes.num_kernels
        found.convolved = self._operations.convolved_ratio
        found.streamed_bytes = float(self._operations.streamed_bytes)
        keepers = {key: place for key, (_, place) in self._kept.items()}
        found.connections = self._connections.found(found.records, keepers)
        self._kept.clear()
        # Recomputed parts keep nothing beyond their own backward pass.
        self._is_done = True
        self.rules.end_forward()
        try:
            if not loss.requires_grad:
                return
            self._peak.backward(loss)
        except Exception as error:  # noqa: BLE001 - an operation without a backward pass here; the forward pass is counted
            found.problem = error
            return
        found.all_flops = float(self._operations.total)
        found.streamed_bytes = float(self._operations.streamed_bytes)
        found.convolved = self._operations.convolved_ratio
        found.all_kernels = self._live_bytes.num_kernels
        found.moments = self._peak.moments(found.records)
        self._note_peaks()
        self._context.observed.unused = [left_out(each, self._peak.unreached) for each in self._context.models]

    def _on_call(self) -> None:
        self._context.note_call()
        self._order = CallOrder()

    def _on_module(self, place: int, path: str) -> None:
        """Called before each module of the unit with this place."""
        self._depth += 1
        # Inside of another module it is that one's own code.
        if self._is_done or self._depth > 1:
            return
        if self._order.is_code(place, path, self._units[place]):
            if any(True for _ in self._model.get_submodule(path).parameters()):
                self._context.observed.copied.add(path)
            return
        conflict = self._order.note(place, path)
        self._context.observed.no_chain = self._context.observed.no_chain or conflict or ""
        self._begin_unit(place)

    def _after_module(self) -> None:
        self._depth -= 1

    def _begin_unit(self, place: int) -> None:
        total = self._operations.total
        self.found.flops[self._place] += total - self._counted_flops
        self._place, self._counted_flops = place, total

    def _leave(self, place: int, output: Any) -> None:
        if self._is_done:
            return
        tensors = tensors_of(output)
        passed = [value for value in tensors if not all(map(self._has, storages_of(value)))]
        self._passed = place, list(map(weakref.ref, storages_of(passed)))
        self.found.output_bytes[place] = float(sum(value.nbytes for value in tensors))
        self.found.passed_bytes[place] = float(sum(value.nbytes for value in passed))

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage, place = tensor.untyped_storage(), self._place
        if not self._is_done and not self._has(storage) and not self._peak.is_copy(storage):
            self._kept[storage._cdata] = storage, place
            count = min(storage.nbytes(), tensor.numel() * tensor.element_size())
            self.found.activation_bytes[place] += count
            self._note_taken(storage, place, count)
        return tensor

    def _note_taken(self, storage: torch.UntypedStorage, place: int, count: int) -> None:
        """Notes bytes that a unit keeps, if they are of the newest output that its own unit does not keep."""
        maker, passed = self._passed
        if not any(reference() is storage for reference in passed):
            return
        if maker == place:
            # Code behind the unit's module counts to the unit.
            self.found.passed_bytes[place] -= count
        else:
            self.found.taken_bytes[place] += count

    def _has(self, storage: torch.UntypedStorage) -> bool:
        return storage._cdata in self._own or storage._cdata in self._kept

    def _note_peaks(self) -> None:
        """Notes the most bytes at each unit's backward pass, without what the units before it keep."""
        parts = [
            {id(value) for path in unit.paths for value in self._model.get_submodule(path).parameters()}
            for unit in self._units
        ]
        before = self.found.batch_bytes
        for place, count in enumerate(self._peak.peaks_of(parts)):
            self.found.peak_bytes[place] = max(0.0, count - before)
            before += self.found.activation_bytes[place]


@contextmanager
def _watch(
    model: nn.Module,
    units: Sequence[Unit],
    enter: Callable[[int, str], None],
    after: Callable[[], None],
    leave: Callable[[int, Any], None],
) -> Iterator[None]:
    """Calls `enter` before each module of a unit, with the unit's place and the module's path, `after` behind it, and
    `leave` once with the unit's output."""
    handles = []
    for place, unit in enumerate(units):
        for path in unit.paths:
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(lambda *_, place=place, path=path: enter(place, path)))
            handles.append(module.register_forward_hook(lambda *_: after()))
        if unit.end is None and place + 1 < len(units):
            # The input of the next unit is the output of the modules before the first list.
            following = model.get_submodule(units[place + 1].paths[0])
            handles.append(
                following.register_forward_pre_hook(lambda *values, place=place: leave(place, values[1][:1]))
            )
            continue
        last = model.get_submodule(unit.end or unit.paths[-1])
        handles.append(last.register_forward_hook(lambda *values, place=place: leave(place, values[-1])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
