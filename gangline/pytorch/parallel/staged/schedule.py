"""Runs microbatches through this rank's parts with the schedules of torch.distributed.pipelining.

The rank of the last part runs the schedule in a thread of its own, because train_batch computes the losses meanwhile in
the thread that trains. The two threads take turns: one of them always waits for the other, so random numbers are drawn
in one order.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from gangline.core.beat import BACKWARD, EXCHANGE, Beat
from gangline.pytorch.parallel.staged.layout import Described
from gangline.pytorch.parallel.staged.surroundings import Surroundings, current_stream, wait_for_stream

_CLASSES: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
}
# torch logs the whole schedule, a line for each step, with the error of any rank.
logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
# Texts of the errors in which torch wraps that of a part.
_FORWARD, _BACKWARD = "failed to run forward", "Failed to run stage backward"


class PartModule(nn.Module):
    """A part as a module. modules: those of its units. weights: its parameters, with those of no unit. run: called with
    the number of a microbatch and the received tensors; returns the tensors of the part's output."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        weights: Sequence[nn.Parameter],
        run: Callable[[int, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]],
    ) -> None:
        super().__init__()
        self.units = nn.ModuleList(modules)
        self._weights = list(weights)
        self._run = run

    def forward(self, *received: torch.Tensor, microbatch: int) -> tuple[torch.Tensor, ...]:
        return self._run(microbatch, received)

    def add_weight(self, weight: nn.Parameter) -> None:
        if all(known is not weight for known in self._weights):
            self._weights.append(weight)

    def parameters(self, recurse: bool = True) -> Any:
        return iter(self._weights)


class _Stage(PipelineStage):
    """A stage that records in the rank's beat when it computes gradients. place: for errors of backward passes."""

    def __init__(self, *args: Any, beat: Beat, place: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._beat = beat
        self._place = place

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self._computing_gradients(bwd_chunk_id):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            # A pass for the inputs alone leaves the layout in which an operation computes a gradient, as one over
            # turned pictures. Only contiguous tensors can be sent.
            gradients = self.bwd_cache.get(bwd_chunk_id)
            if gradients is not None:
                self.bwd_cache[bwd_chunk_id] = tuple(
                    each.contiguous() if isinstance(each, torch.Tensor) else each for each in gradients
                )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        with self._computing_gradients(bwd_chunk_id):
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def _computing_gradients(self, number: int) -> Iterator[None]:
        """Adds a note with the stage and the microbatch to an error of a backward pass."""
        self._beat.stay(BACKWARD)
        try:
            yield
        except Exception as error:
            # torch wraps errors of a whole backward pass, but not those of the pass for the weights alone.
            own = error.__cause__ if _BACKWARD in str(error) and error.__cause__ is not None else error
            own.add_note(f"in {self._place}, backward pass of microbatch {number} of {self.chunks}")
            raise
        self._beat.stay(EXCHANGE)


class PartSchedule:
    """A schedule for one number and one shape of microbatches. crossing: descriptions of all parts' outputs. group: of
    the replica. loss_of: returns the loss of a microbatch; called on the rank of the last part. describe_place:
    returns a part's name and rank, for errors. beat: gets BACKWARD during a backward pass, and EXCHANGE after it."""

    def __init__(
        self,
        name: str,
        parts: Mapping[int, PartModule],
        crossing: Sequence[Described],
        *,
        microbatches: int,
        device: torch.device,
        group: dist.ProcessGroup,
        loss_of: Callable[[int], torch.Tensor],
        describe_place: Callable[[int], str],
        beat: Beat,
    ) -> None:
        self._count = microbatches
        self._stages = [
            _Stage(
                module,
                part,
                len(crossing),
                device,
                beat=beat,
                place=describe_place(part),
                input_args=_examples(crossing[part - 1]) if part else (),
                output_args=_examples(crossing[part]),
                group=group,
            )
            for part, module in sorted(parts.items())
        ]
        options = {"loss_fn": lambda output, number: loss_of(number), "scale_grads": False}
        schedule_class = _CLASSES[name]
        several = name in ("Interleaved1F1B", "ZBVZeroBubble")
        self._schedule = schedule_class(self._stages if several else self._stages[0], microbatches, **options)

    def run(self) -> None:
        """Runs all forward and backward passes of this rank's parts. Raises the error of a part itself, not torch's
        wrapper."""
        numbers = list(range(self._count))
        for stage in self._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        try:
            self._schedule._step_microbatches(
                [() for _ in numbers], [{"microbatch": number} for number in numbers], numbers, None, False
            )
        except RuntimeError as error:
            if error.__cause__ is None or not any(text in str(error) for text in (_FORWARD, _BACKWARD)):
                raise
            raise error.__cause__ from None
        finally:
            self._schedule._internal_losses.clear()


def _examples(described: Described) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty(shape.shape, dtype=shape.dtype, device="meta").requires_grad_(shape.dtype.is_floating_point)
        for shape in described.shapes
    )


_Given = tuple[torch.Tensor, torch.cuda.Stream | None]
_Order = tuple[Callable[[], None], Surroundings]


class _Abandoned(BaseException):
    """Ends the schedule after train_batch has failed."""


class ScheduleThread:
    """Runs schedules in a thread, which hands out the number of each microbatch whose output is ready and waits for its
    loss. It computes in the CUDA stream of the caller of `start`. Where the caller changes streams between two calls,
    they wait for each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._work: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Losses with the streams in which they are computed.
        self._losses: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._loss: _Given | None = None
        self._surroundings: Surroundings | None = None
        self._owes_loss = False
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[], None]) -> None:
        if self._thread is None:
            arguments = (self._device, self._work, self._ready)
            self._thread = threading.Thread(target=_serve, args=arguments, name="gangline-pipeline", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._work.put, None)
        self._surroundings = Surroundings.here(self._device)
        self._work.put((run, self._surroundings))

    def wait_for(self, number: int) -> None:
        """Waits until the output of a microbatch is ready, after the loss of the one before was given. Raises the
        schedule's error."""
        self._hand_over()
        answer = self._ready.get()
        if isinstance(answer, BaseException):
            raise answer
        assert answer == number
        assert self._surroundings is not None
        wait_for_stream(self._surroundings.stream, self._device)
        self._owes_loss = number >= 0

    def give(self, loss: torch.Tensor) -> None:
        """Keeps the loss of the newest microbatch until the next one is waited for."""
        self._loss = loss, current_stream(self._device)

    def finish(self) -> None:
        """Waits until the schedule has ended. Raises its error."""
        self.wait_for(-1)

    def abandon(self) -> None:
        """Ends a schedule that waits for a loss which will not come."""
        if self._owes_loss:
            self._losses.put(None)
        self._loss, self._owes_loss = None, False

    def loss_of(self, number: int) -> torch.Tensor:
        """Called by the schedule."""
        self._ready.put(number)
        given = self._losses.get()
        if given is None:
            raise _Abandoned
        loss, stream = given
        wait_for_stream(stream, self._device)
        return loss

    def _hand_over(self) -> None:
        if self._loss is not None:
            self._losses.put(self._loss)
            self._loss, self._owes_loss = None, False


def _serve(device: torch.device, work: queue.SimpleQueue[_Order | None], ready: queue.SimpleQueue[Any]) -> None:
    """The thread of a ScheduleThread, which it does not hold: it ends with it, by an order of None."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    while _carry_out(work.get(), ready):
        pass


def _carry_out(order: _Order | None, ready: queue.SimpleQueue[Any]) -> bool:
    """Runs one schedule. Returns False for the last order. The thread keeps nothing of a schedule that has ended, which
    holds the model."""
    if order is None:
        return False
    run, surroundings = order
    try:
        with surroundings.taken_over():
            run()
    except _Abandoned:
        pass
    except BaseException as error:  # noqa: BLE001  it is raised again in the thread that trains
        ready.put(error)
    else:
        ready.put(-1)
    return True
