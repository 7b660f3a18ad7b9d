"""Gathers parameters in half precision, with half of the bytes, where forward passes under torch.autocast use no other
values of them.

In the first forward and backward pass all parameters are gathered in their own type, and each rank sees how they are
used. Then the ranks agree: a parameter that some rank has used in half precision, and none in its own type, is gathered
in half precision from then on. Losses and gradients are the same bit for bit, because autocast would cast the same
numbers after the gathering. Gradients keep their own type. Used by the strategies that divide models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gangline.pytorch.parallel.divided.half_parameter import HALF_TYPES, Values, WholeParameter

# Internal names of torch's parameter groups. A release without one of them gathers in the parameters' own types.
_NEEDED = ("unshard", "_to_unsharded", "_to_sharded", "_post_forward_indices", "_all_gather_result", "_training_state")
# Modules whose parameters are used by operations of torch alone. Kernels of others may need a tensor's own memory.
_KNOWN_MODULES = "torch.nn."
# Agreements until parameters that no rank has used stay as they are, such as those of a model that is trained later.
_MOST_AGREEMENTS = 10
GatherAlone = Callable[[Any, torch.Tensor, torch.Tensor], None]


class HalfGathering:
    """Follows the blocks of one trial. gather_alone: gathers a parameter by itself on all ranks in step; gets torch's
    record of its block, room for the whole parameter, and this rank's part."""

    def __init__(self, device: torch.device, gather_alone: GatherAlone) -> None:
        self._device_type = device.type
        self._gather_alone = gather_alone
        # The type of half precision under which the first pass ran; None before it.
        self._half: torch.dtype | None = None
        self._undecided: list[_Candidate] = []
        self._num_agreements = 0

    def watch(self, group: Any) -> None:
        """Follows a block from now on. group: torch's record of its parameters. A block that is divided when the ranks
        do not observe any more, such as that of a later copy, stays as it is."""
        if not self._is_observing or not all(hasattr(group, name) for name in _NEEDED):
            return
        block = _Block(group, self._gather_alone)
        self._undecided += block.candidates
        unshard, to_unsharded, to_sharded = group.unshard, group._to_unsharded, group._to_sharded

        def choose_and_unshard(async_op: bool = False) -> None:
            if block.may_change:
                self._choose(block)
            unshard(async_op)

        def dress_and_use() -> None:
            block.dress()
            to_unsharded()

        def divide() -> None:
            block.free()
            to_sharded()

        group.unshard, group._to_unsharded, group._to_sharded = choose_and_unshard, dress_and_use, divide

    def agree(self) -> None:
        """Called before a step, on all ranks in step: no graph from before it is used after it."""
        if self._half is None or not self._is_observing or not self._undecided:
            return
        self._num_agreements += 1
        # For each parameter whether some rank has used it in half precision, and whether one has used it otherwise.
        uses = [candidate.uses for candidate in self._undecided]
        flags = torch.tensor([[self._half in each for each in uses], [bool(each - {self._half}) for each in uses]])
        flags = flags.to(torch.uint8)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        for candidate, is_half, is_other in zip(self._undecided, *flags.tolist(), strict=True):
            candidate.is_decided = bool(is_half or is_other)
            candidate.is_fit = bool(is_half and not is_other)
        self._undecided = [candidate for candidate in self._undecided if not candidate.is_decided]

    @property
    def _is_observing(self) -> bool:
        return self._num_agreements < _MOST_AGREEMENTS

    def _choose(self, block: _Block) -> None:
        """Chooses in which type a block is gathered for a forward pass. A backward pass needs what its forward pass has
        used."""
        half = self._autocast_type()
        block.is_observed = half is not None and torch.is_grad_enabled() and self._is_observing and not _is_compiling()
        if block.is_observed and self._half is None:
            self._half = half
        block.change(half if half is self._half else None)

    def _autocast_type(self) -> torch.dtype | None:
        if not torch.is_autocast_enabled(self._device_type):
            return None
        half = torch.get_autocast_dtype(self._device_type)
        return half if half in HALF_TYPES else None


class _Candidate:
    """A parameter that may be gathered in half precision. record: torch's. uses: the types in which observed passes
    have used it, with None for its own type. is_decided: whether a rank has used it. is_fit: whether the ranks have
    agreed to gather it in half precision, and none has needed its own type since."""

    def __init__(self, group: Any, record: Any, gather_alone: GatherAlone) -> None:
        self.record = record
        self.uses: set[torch.dtype | None] = set()
        self.is_decided = self.is_fit = False
        self._group = group
        self._gather_alone = gather_alone

    @property
    def values(self) -> Values | None:
        whole = getattr(self.record, "_unsharded_param", None)
        return whole.whole_values if isinstance(whole, WholeParameter) else None

    def dress(self, half: torch.dtype | None) -> None:
        """Puts a WholeParameter in the place of torch's whole parameter."""
        if self.values is None:
            values = Values(self.record._unsharded_param.detach(), half, self._fetch, self.uses)
            self.record._unsharded_param = WholeParameter(values, self.record.sharded_param)

    def change(self, half: torch.dtype | None) -> None:
        """Has the next gathering send the parameter in half precision; None: in its own type."""
        is_dressed = self.values is not None
        if getattr(self.record, "param_dtype", None) is not half or (is_dressed and self.is_decided and half is None):
            self.record.param_dtype = half
            # torch makes them anew.
            self.record.all_gather_outputs = []
            vars(self.record).pop("_unsharded_param", None)

    def _fetch(self) -> torch.Tensor:
        """Returns the whole values in the parameter's own type. All ranks call it in step."""
        self.is_fit = False
        part, process_group = self.record._sharded_param_data, self._group._all_gather_process_group
        whole: torch.Tensor = part.new_empty(part.numel() * process_group.size())
        self._gather_alone(self._group, whole, part)
        return whole.as_strided(self.record._orig_size, self.record._contiguous_orig_stride)


class _Block:
    """The parameters that are gathered at once. is_observed: whether the running pass shows how they are used."""

    def __init__(self, group: Any, gather_alone: GatherAlone) -> None:
        self._group = group
        self.is_observed = False
        records = filter(_is_known, group.fsdp_params)
        self.candidates = [_Candidate(group, record, gather_alone) for record in records]

    @property
    def may_change(self) -> bool:
        """Whether the block is gathered for a forward pass, and no backward pass or reduction needs the whole
        parameters of before."""
        group = self._group
        if not group.is_sharded or group._all_gather_result is not None or group._post_forward_indices:
            return False
        whole_parameters = (getattr(record, "_unsharded_param", None) for record in group.fsdp_params)
        has_gradients = any(whole is not None and whole.grad is not None for whole in whole_parameters)
        return not has_gradients and group._training_state is not type(group._training_state).PRE_BACKWARD

    def change(self, half: torch.dtype | None) -> None:
        for candidate in self.candidates:
            candidate.change(half if candidate.is_fit else None)

    def dress(self) -> None:
        for candidate in self.candidates:
            half = getattr(candidate.record, "param_dtype", None)
            if half is not None or (self.is_observed and not candidate.is_decided):
                candidate.dress(half)

    def free(self) -> None:
        for candidate in self.candidates:
            if candidate.values is not None:
                candidate.values.free()


def _is_known(record: Any) -> bool:
    place = record._module_info
    modules = (place.module, *place.shared_modules)
    is_whole_part = not record.is_dtensor and record.fsdp_placement.dim == 0 and not record.offload_to_cpu
    return (
        is_whole_part
        and record.sharded_param.dtype is torch.float32
        and all(type(module).__module__.startswith(_KNOWN_MODULES) for module in modules)
    )


def _is_compiling() -> bool:
    """Returns whether this process has compiled a function or module: torch.compile knows no parameter without memory
    of its own."""
    return any(getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {}).values())
