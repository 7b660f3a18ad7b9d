"""Measures the norm of gradients over the stages of a pipeline, and makes sure that all ranks measure the same one.

A norm is a collective: each rank adds that of its own gradients. A trial's clip_grads may leave out parameters without
a gradient, which are others on each rank. Where it measures the whole model or a parameter group, the ranks still mean
the same norm. Where it measures layer by layer, they would add up norms of different layers, or wait for one another
for ever. So ranks exchange what they measure, and at the end of clip_grads that they measure no more.

Made by the strategy `pipeline` for each use, on all ranks in step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.norm import gradient_norm, norm_here
from gangline.pytorch.parallel.staged.gradient import torch_clipping_over
from gangline.pytorch.parallel.staged.holding import Holding

_CODE = "pytorch.partial_gradients"
# What a rank does.
_ENDS, _MEASURES, _MEASURES_OTHER = 0, 1, 2
# Digests of parameters have so many bits, which a number in fp64 can have.
_DIGEST_BITS = 52


class NormAgreement:
    """place: of this rank inside of its replica. group: the ranks that have one whole set of gradients; None for all.
    optimizer: whose gradients clip_grads gets; None where it is not known."""

    def __init__(
        self,
        holding: Holding,
        place: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
        optimizer: Optimizer | None,
    ) -> None:
        self._holding = holding
        self._place = place
        self._group = group
        self._device = device
        self._positions = {id(parameter): position for position, parameter in enumerate(holding.parameters())}
        groups = [] if optimizer is None else [self._positions_of(group["params"]) for group in optimizer.param_groups]
        # Sets of parameters that a norm may be of, although a rank sees its own gradients alone.
        self._sets = [set().union(*groups) if groups else set(self._positions.values()), *groups]

    def norm_of(self, parameters: Sequence[nn.Parameter], norm_type: float) -> torch.Tensor:
        """Returns the norm over all ranks of the gradients of these parameters, of which this rank has some."""
        norm = gradient_norm([parameter for parameter in parameters if self._is_counted(parameter)], norm_type)
        own = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return self._add_up(norm, norm_type, own, parameters)

    @contextmanager
    def over_torch(self) -> Iterator[None]:
        """Lets torch's clip_grad_norm_ and get_total_norm measure over all ranks for the time of the block. At its end
        the ranks wait for one another. Raises GanglineError `pytorch.partial_gradients` on all of them where they have
        measured other norms, or another number of them."""
        with torch_clipping_over(self._total_norm):
            yield
        self._exchange(_ENDS, torch.zeros(()), 0, set())

    def _total_norm(
        self,
        parameters: Sequence[torch.Tensor] | None,
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """Takes the place of torch's function. parameters: those of torch's clip_grad_norm_ where it calls."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        shared = {_place_of(each.grad) for each in self._held() if each.grad is not None and not self._is_counted(each)}
        counted = [tensor for tensor in tensors if _place_of(tensor) not in shared]
        # Not an error of one rank alone, for which the others would wait.
        norm = norm_here(counted, norm_type, False, foreach)
        total = self._add_up(norm, float(norm_type), tensors, parameters)
        if error_if_nonfinite and not math.isfinite(total):
            raise RuntimeError(
                f"The total norm of order {float(norm_type)} for gradients is non-finite, so it cannot be clipped"
            )
        return total

    def _add_up(
        self,
        norm: torch.Tensor,
        norm_type: float,
        gradients: Sequence[torch.Tensor],
        parameters: Sequence[torch.Tensor] | None,
    ) -> torch.Tensor:
        position_by_place = {
            _place_of(each.grad): self._positions[id(each)] for each in self._held() if each.grad is not None
        }
        found = {position_by_place.get(_place_of(gradient), -1) for gradient in gradients if gradient.numel()}
        own = {position for place, position in position_by_place.items() if place[1]}
        kind = _MEASURES_OTHER if -1 in found else _MEASURES
        matches = {number for number, members in enumerate(self._sets) if found == members & own}
        digest = 0 if parameters is None else _digest_of(self._positions_of(parameters))
        values = self._exchange(kind, norm, digest, matches)
        total = values.max() if norm_type == math.inf else (values**norm_type).sum() ** (1.0 / norm_type)
        # A rank that counts none of its gradients has a norm of none, in fp32, and all ranks scale by the same number.
        is_fine = any(gradient.dtype in (torch.float64, torch.complex128) for gradient in gradients)
        return total if is_fine else total.to(norm.dtype)

    def _exchange(self, kind: int, norm: torch.Tensor, digest: int, matches: set[int]) -> torch.Tensor:
        """Returns the ranks' own norms. digest: of the parameters, the same number on all ranks that have been given
        the same ones; 0 where they are not known. matches: numbers of the sets that this rank's gradients agree with.
        """
        numbers = [kind, digest, *(float(number in matches) for number in range(len(self._sets)))]
        own = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        own = torch.cat([own, norm.detach().to(self._device, torch.float64).reshape(1)])
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(rows, own, group=self._group)
        table = torch.stack(rows)
        kinds, digests, *sets = table[:, :-1].T.tolist()
        if _MEASURES_OTHER in kinds:
            raise invalid(
                _CODE,
                "clip_grads measures the norm of tensors that are no gradients of its parameters, which pipeline "
                "cannot add up over its slots; pass parameter.grad to torch.nn.utils.get_total_norm, or use ddp",
            )
        is_same = digests[0] != 0 and len(set(digests)) == 1
        if len(set(kinds)) > 1 or (kind == _MEASURES and not is_same and not any(map(all, sets))):
            raise invalid(
                _CODE,
                "clip_grads measures a norm of some gradients on one slot of the pipeline, and of others or none on "
                "another; call context.clip_grad_norm with the parameters of the model or of a layer, the same ones on "
                "all slots, whether they have gradients there or not, or use ddp",
            )
        return table[:, -1]

    def _held(self) -> list[nn.Parameter]:
        return self._holding.held_by(self._place)

    def _is_counted(self, parameter: nn.Parameter) -> bool:
        """Returns whether a gradient counts on this rank. That of a shared parameter counts on one of its ranks."""
        return self._holding.holders(parameter)[0] == self._place

    def _positions_of(self, parameters: Iterable[torch.Tensor]) -> set[int]:
        return {self._positions[id(each)] for each in parameters if id(each) in self._positions}


def _place_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns what tells gradients apart, and is the same for a view of all of a gradient."""
    return tensor.data_ptr(), tensor.numel()


def _digest_of(positions: set[int]) -> int:
    # Python gives tuples of integers the same hash in all processes.
    return hash(tuple(sorted(positions))) % (1 << _DIGEST_BITS) + 1
