"""PURE: the bytes that a slot needs under each strategy that does not cut the model.

The formulas count what torch really keeps: a stored parameter, its gradient, the optimizer's state, and what a step
adds for a moment. A test compares them with worked examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.config.parallelism import STRATEGIES
from gangline.pytorch.parallel.shared.even_division import largest_share
from gangline.pytorch.plan.model_size import ModelSize, Moment

# Tensors travel in messages of about this size, where a strategy joins them.
MESSAGE_BYTES = float(32 << 20)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one slot needs."""

    parameters: float
    gradients: float
    optimizer: float
    transient: float  # tensors that exist for a part of each step, beside the other four
    # all other tensors at the moment that needs most, less the gradients that do not exist at that moment
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.transient + self.activations


def slot_memory(model: ModelSize, strategy: str, slots: int, records: float, shards: int | None = None) -> Memory:
    """Returns the bytes of one slot for a strategy that does not cut the model. records: of one slot's batch. shards:
    the slots among which `hsdp` divides; the other strategies divide by all."""
    family = STRATEGIES[strategy].family
    assert family in ("single", "replicated", "sharded"), strategy
    whole = float(model.parameters)
    divided = whole / (shards or slots)
    block = float(model.largest_block)
    if family != "sharded":
        # DDP's buckets are the gradients themselves (gradient_as_bucket_view).
        # Each tensor has one owner with zero1. The slot that owns most needs most.
        state = whole * owned_ratio(model, slots) if strategy == "zero1" else whole
        # The buckets stay from step to step. Without them gradients come one by one, and go after the step.
        late = model.gradient * whole if family == "single" else 0.0
        step = step_bytes(model, state)
        if strategy == "zero1":
            step = max(step, min(model.stored * state, MESSAGE_BYTES))
        activations = max(step, _working_bytes(model, records, late))
        return Memory(model.stored * whole, model.gradient * whole, model.optimizer * state, 0.0, activations)
    # zero2 keeps the gathered parameters from forward to backward; the others two groups of them.
    gathered = whole if strategy == "zero2" else min(2 * block, whole)
    # A group's gradients are whole before they are reduced. They come when the gathered parameters are all still there.
    transient = model.computed * gathered + model.gradient * block
    step = step_bytes(model, divided, shards or slots)
    activations = max(step - transient, _working_bytes(model, records, model.gradient * divided))
    return Memory(model.stored * divided, model.gradient * divided, model.optimizer * divided, transient, activations)


def owned_ratio(model: ModelSize, slots: int) -> float:
    """Returns the part of the trained parameters that one slot owns at most; equal parts where no tensors are known."""
    return largest_share(model.tensors, slots) / sum(model.tensors) if model.tensors else 1 / slots


def step_bytes(model: ModelSize, stepped: float, shards: int = 1) -> float:
    """Returns the temporary bytes of the optimizer's step. stepped: the parameters that this slot steps. shards: the
    parts of each tensor, of which this slot has one."""
    return max(model.step_bytes * stepped, model.step_tensor_bytes / shards)


def _working_bytes(model: ModelSize, records: float, late: float) -> float:
    """Returns the most bytes of a step beside parameters, gradients and state. late: bytes of the gradients that come
    during the backward pass."""
    moments = model.moments or (Moment(model.batch_bytes + model.activation_bytes, 1.0, model.copied_bytes),)
    return max(
        0.0,
        *(
            moment.working_bytes * records + moment.copied_bytes - late * (1 - moment.gradient_ratio)
            for moment in moments
        ),
    )
