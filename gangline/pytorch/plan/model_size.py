"""PURE: what was measured of a model: sizes of its units, tensors and passes, from which a plan is computed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UnitSize:
    """Sizes of one unit of a model's chain. Bytes and operations are for one record, where not said otherwise."""

    name: str
    parameters: int  # number of parameters
    activation_bytes: float = 0.0  # kept from the forward to the backward pass
    output_bytes: float = 0.0  # what the next unit gets
    forward_flops: float = 0.0  # operations of the forward pass
    peak_bytes: float = 0.0  # the most in its forward and backward pass, kept bytes included; 0 if not measured
    tensors: tuple[int, ...] = ()  # number of elements of each parameter tensor; empty if not measured
    # whether the backward pass reaches the unit, because it or an earlier unit has trained parameters
    has_backward: bool = True
    passed_bytes: float = 0.0  # bytes of the output, if the unit itself does not keep it; else 0
    taken_bytes: float = 0.0  # the part of activation_bytes that is the output of the unit before
    copied_bytes: float = 0.0  # parameters' copies in half precision, whatever the number of records; as in ModelSize


@dataclass(frozen=True, slots=True)
class Connection:
    """An output of a unit's module that a later unit needs besides the output of the unit before it, as a skip
    connection does."""

    path: str
    bytes: float  # size of the output for one record
    maker: int  # index of the unit that makes it
    first: int  # a pipeline carries it over the borders behind the units from `first` to the one before `last`
    last: int  # index of the unit behind the last of these borders
    # index of the unit that keeps it anyway and counts it in its activation_bytes; None if none does
    keeper: int | None = None

    def crosses(self, unit: int) -> bool:
        """Returns whether a border behind this unit is crossed."""
        return self.first <= unit < self.last


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the forward or backward pass."""

    working_bytes: float  # all tensors beside parameters and their gradients, for one record
    gradient_ratio: float  # the part of the gradients that exist then, 0 to 1
    copied_bytes: float = 0.0  # the parameters' copies in half precision that exist then


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a model: memory and operations of its passes and of the optimizer's step."""

    parameters: int  # number of parameters of the model
    largest_block: int  # number of parameters of the largest group that is gathered at once
    stored: float = 4.0  # bytes of a parameter as stored
    gradient: float = 4.0  # bytes of a parameter's gradient
    optimizer: float = 8.0  # bytes of the optimizer's state for a parameter
    computed: float = 4.0  # bytes of a parameter in a gathered copy
    # kept from the forward to the backward pass over the whole model, beside the batch, for one record
    activation_bytes: float = 0.0
    # the chain that a pipeline can cut; empty for a model that it cannot cut
    units: tuple[UnitSize, ...] = field(default=())
    forward_flops: float = 0.0  # operations of the forward pass, for one record
    # those that need most memory in a forward and backward pass; empty if only the forward pass was measured
    moments: tuple[Moment, ...] = field(default=())
    step_bytes: float = 0.0  # temporary tensors of the optimizer's step, for each parameter that is stepped
    # the same for the largest parameter tensor, if the optimizer steps one tensor after the other
    step_tensor_bytes: float = 0.0
    # what the backward pass computed again while all sizes were measured, as in gangline.config.parallelism
    recomputation: str = "none"
    tensors: tuple[int, ...] = ()  # number of elements of each trained parameter tensor; empty if not measured
    forward_kernels: float = 0.0  # operations that the forward pass issues, whatever the number of records
    num_groups: int = 1  # groups that are gathered at once: the blocks, and one for everything outside of them
    connections: tuple[Connection, ...] = ()  # outputs of units that a pipeline carries over its borders
    # operations of the forward and backward pass over those of the forward pass; 0 if backward was not measured
    flop_passes: float = 0.0
    # issued operations of both passes over those of the forward pass; 0 if backward was not measured
    kernel_passes: float = 0.0
    update_kernels: float = 0.0  # operations that the optimizer's step issues for all parameters
    update_bytes: float = 0.0  # bytes that the optimizer's step reads and writes, for each parameter
    batch_bytes: float = 0.0  # what the data loader gives, for one record
    # the part of the passes' operations in convolutions whose kernels are larger than one point, 0 to 1
    convolved: float = 0.0
    # parameters' copies in half precision that a forward pass under autocast makes, for any number of records
    copied_bytes: float = 0.0
    # Read and written in both passes by operations other than products, such as those on each element, for one record.
    # Only in the forward pass if the backward pass was not measured.
    streamed_bytes: float = 0.0

    @property
    def sent(self) -> float:
        """Bytes for a parameter in a message of a gathering. A parameter of which a pass makes a copy in half precision
        is sent so: its copy has half of its bytes. Only the first step's messages have all bytes."""
        return max(self.computed / 2, self.computed - self.copied_bytes / max(1, self.parameters))

    @property
    def kept(self) -> float:
        """Bytes for a parameter that is whole on a slot."""
        return self.stored + self.gradient + self.optimizer
