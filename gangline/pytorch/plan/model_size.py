"""PURE: what was measured of a model: sizes of its units, tensors and passes, from which a plan is computed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UnitSize:
    """A unit of a model's chain. parameters: their number. activation_bytes: kept from its forward to its backward
    pass, for one record. output_bytes: what the next unit gets, for one record. forward_flops: for one record.
    peak_bytes: the most in its forward and backward pass, kept ones included, for one record; 0 if not measured.
    tensors: numbers of elements of its parameter tensors; empty if not measured. has_backward: whether the backward
    pass reaches it, as parameters are trained in it or before it. passed_bytes: of the output, where this unit does
    not keep it. taken_bytes: the part of activation_bytes that is the output of the unit before. copied_bytes: as in
    ModelSize, of this unit."""

    name: str
    parameters: int
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    forward_flops: float = 0.0
    peak_bytes: float = 0.0
    tensors: tuple[int, ...] = ()
    has_backward: bool = True
    passed_bytes: float = 0.0
    taken_bytes: float = 0.0
    copied_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Connection:
    """An output of a unit's module that a later unit needs besides the output of the unit before it, as a skip
    connection does. bytes: for one record. maker: the place of the unit that makes it. first, last: a pipeline carries
    it over the borders behind the units from `first` to the one before `last`. keeper: the unit whose passes keep it
    anyway, and whose activation_bytes have it; None if none does."""

    path: str
    bytes: float
    maker: int
    first: int
    last: int
    keeper: int | None = None

    def crosses(self, unit: int) -> bool:
        """Returns whether a border behind this unit is crossed."""
        return self.first <= unit < self.last


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of the forward or backward pass. working_bytes: of all tensors beside parameters and their gradients,
    for one record. gradient_ratio: the part of the gradients that are there. copied_bytes: of the parameters' copies in
    half precision that are there."""

    working_bytes: float
    gradient_ratio: float
    copied_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """parameters, largest_block: numbers of parameters, of the model and of the largest group that is gathered at once.

    stored, gradient, optimizer, computed: bytes for a parameter: as stored, of its gradient, of the optimizer's state,
    and of a gathered copy. batch_bytes: for one record, of what the data loader gives. activation_bytes: kept besides
    from the forward to the backward pass, for one record, over the whole model. units: the chain that a pipeline can
    cut; empty for a model that it cannot cut. forward_flops: for one record. moments: those that need most, measured in
    a forward and backward pass; empty where only the forward pass was measured. step_bytes: of temporary tensors in the
    optimizer's step, for each parameter that is stepped; step_tensor_bytes: for the largest parameter tensor, where the
    optimizer steps one after the other. recomputation: what was computed again in the backward pass, as in
    gangline.config.parallelism; all sizes were measured so. tensors: numbers of elements of the trained parameter
    tensors; empty if not measured. forward_kernels: operations that the forward pass issues, whatever the number of
    records. num_groups: groups that are gathered at once: the blocks, and all that is outside of them. connections:
    outputs of units that are carried over borders of a pipeline. flop_passes, kernel_passes: operations of the forward
    and backward pass, and those that are issued, over the forward pass's own; 0 where the backward pass was not
    measured. update_kernels: operations that a step of the optimizer issues for all parameters. update_bytes: bytes
    that it reads and writes, for each parameter. convolved: the part of the operations of its passes that convolutions
    have whose kernels are larger than one point. copied_bytes: of the parameters' copies in half precision that a
    forward pass under autocast makes, whatever the number of records. streamed_bytes: for one record, read and written
    in both passes by operations other than products, as those on each element; only in the forward pass where the
    backward pass was not measured.
    """

    parameters: int
    largest_block: int
    stored: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0
    computed: float = 4.0
    activation_bytes: float = 0.0
    units: tuple[UnitSize, ...] = field(default=())
    forward_flops: float = 0.0
    moments: tuple[Moment, ...] = field(default=())
    step_bytes: float = 0.0
    step_tensor_bytes: float = 0.0
    recomputation: str = "none"
    tensors: tuple[int, ...] = ()
    forward_kernels: float = 0.0
    num_groups: int = 1
    connections: tuple[Connection, ...] = ()
    flop_passes: float = 0.0
    kernel_passes: float = 0.0
    update_kernels: float = 0.0
    update_bytes: float = 0.0
    batch_bytes: float = 0.0
    convolved: float = 0.0
    copied_bytes: float = 0.0
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
