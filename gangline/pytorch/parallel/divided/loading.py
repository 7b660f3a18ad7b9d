"""Lets load_state_dict fill a divided model: cuts whole values into the parts of this rank.

torch cannot copy a whole tensor into a part. A hook of each module divides the values before torch copies them. The
hook also keeps a checksum of them, because ranks that load different values would train a mixture. Used by the
strategies that divide models.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gangline.errors import invalid
from gangline.pytorch.data.checksum import sum_of_bits

# Keeps the checksum and its negative within the int64 of the all-reduce.
_MODULUS = 1 << 62
# Makes the checksum depend on the order of the values.
_FACTOR = 1_000_003


class Loads:
    """Keeps the checksum of the values loaded into the divided models of one trial. strategy: its name, for errors."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        self._checksum = 0
        self._num_values = 0

    def watch(self, model: nn.Module) -> None:
        """Adds the hook to a model right after it was divided."""
        for module in model.modules():
            if module not in _known:
                module.register_load_state_dict_pre_hook(_before_load)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            own: dict[str, Any] = dict(module._parameters)
            _known[module] = _Known(
                self, {name: parameter for name, parameter in own.items() if isinstance(parameter, DTensor)}
            )

    def divide(self, value: torch.Tensor, part: DTensor) -> DTensor:
        """Returns this rank's part of a whole value, placed as `part`. Every rank divides its own copy of the value."""
        value = value.detach().contiguous()
        self._num_values += 1
        self._checksum = (self._checksum * _FACTOR + int(sum_of_bits(value))) % _MODULUS
        mesh = part.device_mesh
        return distribute_tensor(value.to(mesh.device_type), mesh, part.placements, src_data_rank=None)

    def check(self, device: torch.device) -> None:
        """Compares the checksums of all ranks, which call it in step. Raises GanglineError `parallelism.loaded` where
        ranks have loaded different values."""
        own = [self._checksum, self._num_values]
        bounds = torch.tensor([*own, *(-number for number in own)], device=device)
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
        largest, least = bounds[:2].tolist(), (-bounds[2:]).tolist()
        if largest == least:
            return
        raise invalid(
            "parallelism.loaded",
            "load_state_dict was called after context.wrap_model with other values on some ranks than on others (this "
            f"rank loaded {self._num_values} parameters), so {self.strategy} would train a mixture of them; load the "
            "same file on all ranks, or load it before context.wrap_model",
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """Record of one module."""

    loads: Loads
    parts: Mapping[str, DTensor]  # its own divided parameters, by name


# Kept by weak references outside of the modules: a copy of a module has its hooks, but is no part of a divided model.
_known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def _before_load(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any], *_: Any
) -> None:
    record = _known.get(module)
    if record is None:
        return
    if local_metadata.get("assign_to_params_buffers"):
        raise invalid(
            "parallelism.assigned",
            "load_state_dict(assign=True) would put other parameters in the place of those that "
            f"{record.loads.strategy} has divided; leave assign out, or load before context.wrap_model",
        )
    for name, part in record.parts.items():
        value = state_dict.get(prefix + name)
        # torch itself reports a value of another shape.
        if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == part.shape:
            state_dict[prefix + name] = record.loads.divide(value, part)
