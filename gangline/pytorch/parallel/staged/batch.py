"""Trains one batch as a pipeline: calls the user's train_batch once for each microbatch, and runs the schedule while
these calls wait in the model.

The calls are nested. The call for the last microbatch begins first; its call of the model begins the call for the
microbatch before, and so on. Once all of them have passed their inputs to the model, the schedule runs. On the rank of
the last part each call gets its output in the schedule's order and hands back a loss with context.backward. On the
other ranks all calls but the last one end in the model; the last one gets the real output, so that it takes the same
steps everywhere. Only the last call steps optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from gangline.core.beat import EXCHANGE, FORWARD, Beat
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared import reentrant
from gangline.pytorch.parallel.shared.strategy import Train
from gangline.pytorch.parallel.staged.layout import tensors_of
from gangline.pytorch.parallel.staged.microbatch import join_results
from gangline.pytorch.parallel.staged.part import Layout, Parts
from gangline.pytorch.parallel.staged.schedule import ScheduleThread
from gangline.pytorch.parallel.staged.surroundings import current_stream, wait_for_stream


class _CallEnd(BaseException):
    """Ends the call of train_batch for a microbatch on a rank without the last part. No Exception, so that handlers of
    the trial let it pass."""


@dataclass(slots=True)
class _Call:
    """A call of train_batch that has not returned."""

    number: int
    has_called_model: bool = False
    has_backward: bool = False
    # Whether train_batch has the model's output and its own code runs, neither the model nor a backward pass.
    is_behind_model: bool = False


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of the model for one microbatch, the autocast and the CUDA stream in which it was called."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_autocast: bool
    autocast_type: torch.dtype
    number: int  # as in SharedDraws
    stream: torch.cuda.Stream | None


class BatchRun:
    """One batch. microbatches: in the order of its records. prepare: called with the inputs of the model before the
    schedule. begin: returns a function that runs the schedule for a layout; it calls `run_part` and `loss_of`. beat:
    gets FORWARD and BACKWARD while this rank computes, and EXCHANGE while it waits for other stages."""

    def __init__(
        self,
        parts: Parts,
        device: torch.device,
        microbatches: Sequence[Any],
        train: Train,
        *,
        thread: ScheduleThread,
        begin: Callable[[Layout, Any], Callable[[], None]],
        prepare: Callable[[tuple[Any, ...], dict[str, Any]], None],
        beat: Beat,
    ) -> None:
        self._beat = beat
        self._prepare = prepare
        self._parts = parts
        self._device = device
        self._microbatches = microbatches
        self._train = train
        self._thread = thread
        self._begin = begin
        self._calls: list[_Call] = []
        self._inputs: dict[int, _Inputs] = {}
        self._outputs: dict[int, Any] = {}
        self._results: dict[int, Any] = {}
        # The model's output for the last microbatch, without its graph; on the rank of the last part only.
        self._last: Any = None
        self._layout: Layout | None = None

    @property
    def count(self) -> int:
        return len(self._microbatches)

    @property
    def is_clearing_right(self) -> bool:
        """See Strategy.is_clearing_right. Gradients of other microbatches exist from the model's call on; after the
        backward call of the last one they are those of the whole batch."""
        call = self._calls[-1]
        return not call.has_called_model or (call.has_backward and call.number == self.count - 1)

    def run(self) -> Any:
        """Returns the joined results of train_batch on the rank of the last part, elsewhere that of the last call."""
        try:
            self._start(self.count - 1)
        except BaseException:
            self._thread.abandon()
            raise
        return join_results([self._results[number] for number in sorted(self._results)])

    def on_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Takes the place of the model's forward inside train_batch."""
        call = self._calls[-1]
        if reentrant.is_inside():
            raise _unfit(
                "calls the model in a reentrant checkpoint; leave it out and set "
                "parallelism.activation_checkpointing: blocks"
            )
        if not torch.is_grad_enabled():
            raise _unfit("calls the model without gradients; evaluate it in evaluate_batch")
        if call.has_called_model:
            raise _unfit("calls the model twice; call it once with all records, and split its output")
        call.has_called_model = True
        kind = self._device.type
        self._inputs[call.number] = _Inputs(
            args,
            kwargs,
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            self._parts.numbers.draw(),
            current_stream(self._device),
        )
        if call.number > 0:
            self._start(call.number - 1)
        else:
            self._run_schedule()
        output = self._output_for(call)
        call.is_behind_model = True
        return output

    def _output_for(self, call: _Call) -> Any:
        if self._parts.division.has_last:
            self._thread.wait_for(call.number)
            return self._outputs.pop(call.number)
        if call.number < self.count - 1:
            raise _CallEnd
        return self._last_output()

    def on_backward(self, loss: torch.Tensor) -> None:
        """Takes the place of loss.backward inside train_batch."""
        call = self._calls[-1] if self._calls else None
        if call is None or not call.has_called_model:
            raise _unfit("calls context.backward before the model; make the loss from the wrapped model's output")
        if call.has_backward:
            raise _unfit("calls context.backward twice; add the losses up for one call")
        call.has_backward = True
        if not self._parts.division.has_last:
            return
        call.is_behind_model = False
        self._thread.give(loss / self.count)
        if call.number == self.count - 1:
            last_output = self._last
            self._thread.finish()
            assert self._layout is not None
            self._parts.share_output(last_output, self._layout)
        call.is_behind_model = True

    def run_part(self, part: int, number: int, received: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Runs a part's forward pass for a microbatch; called by the schedule. An error gets a note with the stage."""
        inputs, layout = self._inputs[number], self._layout
        assert layout is not None
        self._beat.stay(FORWARD)
        try:
            with torch.autocast(self._device.type, dtype=inputs.autocast_type, enabled=inputs.is_autocast):
                output = self._parts.run(part, received, layout, inputs.args, inputs.kwargs, number=inputs.number)
        except Exception as error:
            error.add_note(f"in {self._parts.division.describe_place(part)}, microbatch {number} of {self.count}")
            raise
        self._beat.stay(EXCHANGE)
        if part == self._parts.division.count - 1:
            self._outputs[number] = output
            if number == self.count - 1:
                self._last = tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), output)
            return tuple(tensors_of(output))
        return tuple(map(to_send, tensors_of(output)))

    def loss_of(self, number: int) -> torch.Tensor:
        """Returns the loss of a microbatch; called by the schedule on the rank of the last part."""
        # train_batch goes on meanwhile.
        self._beat.stay(FORWARD)
        loss = self._thread.loss_of(number)
        self._beat.stay(EXCHANGE)
        return loss

    def _start(self, number: int) -> None:
        call = _Call(number)
        self._calls.append(call)
        try:
            result = self._train(self._microbatches[number], number == self.count - 1)
        except _CallEnd:
            if self._calls[-1] is not call or number == self.count - 1:
                raise
            return
        except (LookupError, AttributeError) as error:
            if not call.is_behind_model:
                raise
            if self._layout is not None and self._layout.collected:
                raise self._without_collected(error, self._layout.collected) from error
            if isinstance(error, AttributeError) and self._may_be_kept_elsewhere(error.obj):
                raise _without_attribute(error) from error
            raise
        finally:
            self._calls.pop()
        if not call.has_called_model:
            raise _unfit("returns without a call of the wrapped model; call what context.wrap_model returned")
        if not call.has_backward:
            raise _unfit("returns without context.backward(loss); call it once for each batch")
        self._results[number] = result

    def _may_be_kept_elsewhere(self, owner: Any) -> bool:
        """Returns whether this is a module of the model, which may have attributes on another slot. There always is
        one, as a pipeline has at least two stages."""
        return any(owner is each for each in self._parts.model.modules())

    def _without_collected(self, error: Exception, places: Collection[str]) -> GanglineError:
        return _unfit(
            f"ends with {type(error).__name__}: {error} behind the model, where this slot does not have all of what "
            f"units of other slots collect in {', '.join(sorted(places))}; let each unit return its value beside its "
            "output, and the model what the loss needs"
        )

    def _run_schedule(self) -> None:
        """Begins the schedule on the rank of the last part, elsewhere runs it to its end."""
        first = self._inputs[0]
        key = self._parts.key_of(first.args, first.kwargs)
        if any(self._parts.key_of(inputs.args, inputs.kwargs) != key for inputs in self._inputs.values()):
            raise _unfit("calls the model with other shapes for one microbatch than for another one; pad the batch")
        for inputs in self._inputs.values():
            wait_for_stream(inputs.stream, self._device)
        self._prepare(first.args, first.kwargs)
        self._layout = self._parts.layout_for(first.args, first.kwargs)
        run = partial(self._run_without_autocast, self._begin(self._layout, key))
        self._beat.stay(EXCHANGE)
        if self._parts.division.has_last:
            self._thread.start(run)
        else:
            run()

    def _run_without_autocast(self, run: Callable[[], None]) -> None:
        # Backward passes belong outside of the autocast in which train_batch runs.
        with torch.autocast(self._device.type, enabled=False), torch.enable_grad():
            run()

    def _last_output(self) -> Any:
        assert self._layout is not None
        output = self._parts.share_output(None, self._layout)
        self._beat.stay(FORWARD)
        return tree_map_only(torch.Tensor, lambda tensor: tensor.requires_grad_(tensor.is_floating_point()), output)


def _without_attribute(error: AttributeError) -> GanglineError:
    kind = type(error.obj).__name__
    return _unfit(
        f"reads {error.name} of {kind} behind the model, which this slot does not have ({error}); where its forward "
        f"keeps it on another slot, return it from forward beside the output, or give {kind} a default for it"
    )


def to_send(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that gloo can send, which must be contiguous, and that ZBVZeroBubble can detach from its graph,
    which must be no view."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor._is_view() else tensor


def _unfit(what: str) -> GanglineError:
    return invalid("parallelism.train_batch", f"pipeline cannot run this trial: its train_batch {what}, or use ddp")
