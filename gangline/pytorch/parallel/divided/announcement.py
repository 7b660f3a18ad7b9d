"""Finds ranks that gather or reduce different blocks of a divided model, before parts of different blocks mix.

A collective does not name its block: where some ranks skip a block, the parts of different blocks mix. Each rank
therefore announces every collective to the others with a few bytes, on a process group of its own. On the CPU the
announcement is compared before the collective. On a GPU it is compared later, so that the host continues meanwhile, and
no later than at the end of the backward pass. Used by the strategies that divide models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

from gangline.errors import GanglineError, invalid

# Cap on announcements that are not compared yet on a GPU, where the host continues before they complete.
_MOST_OPEN = 16
_GATHER, _REDUCE, _END = range(3)
_KINDS = 3
# Bounds on the size of a collective, and on the checksum of what it reduces: an announcement packs block, kind, size
# and checksum into one int64. A sum of more numbers would take gloo twice as many messages.
_MOST_NUMEL, _CHECKSUMS = 1 << 36, 1 << 12
# Numbers of blocks begin again after so many, as those of copies that are gone.
_MOST_BLOCKS = (1 << 15) // _KINDS


class Announcements:
    """Announces the collectives of one trial. Names of the blocks, by number, are added with `watch`. timeout: of an
    announcement; None for torch's own."""

    def __init__(self, device: torch.device, timeout: timedelta | None = None) -> None:
        self._is_late = device.type != "cpu"
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self._names: dict[int, str] = {}
        self._num_watched = 0
        self._open: deque[tuple[torch.Tensor, Any, int]] = deque()

    def watch(self, group: Any, name: str, on_reduction: Callable[[], None]) -> None:
        """Announces the collectives of one block from now on. group: torch's record of the block's parameters. name: of
        the block. on_reduction: called before the block's gradients are reduced. A group that is watched already stays
        as it is."""
        if isinstance(group._all_gather_comm, _Announced):
            return
        number = self._num_watched % _MOST_BLOCKS
        self._num_watched += 1
        self._names[number] = name
        group._all_gather_comm = _Announced(group._all_gather_comm, partial(self._announce, _GATHER, number))
        end, checksum = group.post_backward, 0

        def post_backward(*arguments: Any) -> None:
            nonlocal checksum
            flags = _flags_of_reduced(group)
            checksum = crc32(bytes(flags)) % _CHECKSUMS
            if group.reduce_grads and any(flags):
                on_reduction()
            end(*arguments)

        def reduce(numel: int) -> None:
            # torch calls no collective in a group of one.
            self._announce(_REDUCE, number, numel, checksum)

        group.post_backward = post_backward
        group._reduce_scatter_comm = _Announced(group._reduce_scatter_comm, reduce)

    def gather_alone(self, group: Any, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Gathers a parameter of a block by itself, after all ranks have announced it. group: torch's record."""
        gather: _Announced = group._all_gather_comm
        gather.announce(part.numel())
        self._settle(0)
        gather.collective(output_tensor=whole, input_tensor=part, group=group._all_gather_process_group, async_op=False)

    def end_pass(self) -> None:
        """Announces the end of a backward pass on this rank. Like all announcements it raises GanglineError
        `parallelism.blocks_differ` where another rank is at another block."""
        self._announce(_END, 0)
        self._settle(0)

    def _announce(self, kind: int, number: int, numel: int = 0, checksum: int = 0) -> None:
        code = ((number * _KINDS + kind) * _MOST_NUMEL + numel) * _CHECKSUMS + checksum
        numbers = torch.tensor([code, -code])
        work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._open.append((numbers, work, code))
        self._settle(_MOST_OPEN if self._is_late else 0)

    def _settle(self, most: int) -> None:
        while len(self._open) > most:
            numbers, work, own = self._open.popleft()
            work.wait()
            largest, smallest = int(numbers[0]), -int(numbers[1])
            if largest != smallest:
                self._open.clear()
                raise self._differ(own, largest if own != largest else smallest)

    def _differ(self, own: int, other: int) -> GanglineError:
        is_alike = other // _CHECKSUMS == own // _CHECKSUMS
        others = "reduces as many of other parameters there" if is_alike else self._describe(other)
        return invalid(
            "parallelism.blocks_differ",
            f"this rank {self._describe(own)} while another {others}, but ranks that divide a model "
            "must use the same parts of it in each batch; draw what decides that from a generator of the same seed on "
            "all ranks, or use parallelism: {strategy: ddp, find_unused_parameters: true}",
        )

    def _describe(self, code: int) -> str:
        place, numel = divmod(code // _CHECKSUMS, _MOST_NUMEL)
        number, kind = divmod(place, _KINDS)
        if kind == _END:
            return "has ended its backward pass"
        verb = "gathers" if kind == _GATHER else f"reduces {numel} gradients of"
        return f"{verb} {self._names[number]}"


def _flags_of_reduced(group: Any) -> list[bool]:
    """Returns for each parameter whether it has a gradient to reduce. Checksums of two such lists of one length seldom
    are the same."""
    return [
        fsdp_parameter.unsharded_accumulated_grad is not None
        or getattr(getattr(fsdp_parameter, "_unsharded_param", None), "grad", None) is not None
        for fsdp_parameter in group.fsdp_params
    ]


class _Announced:
    """Replaces a collective of torch's fully_shard: an object that also allocates the collective's output."""

    def __init__(self, collective: Any, announce: Callable[[int], None]) -> None:
        self.collective = collective
        self.announce = announce

    def allocate(self, *arguments: Any, **options: Any) -> torch.Tensor:
        output: torch.Tensor = self.collective.allocate(*arguments, **options)
        return output

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        sent = arguments[1] if len(arguments) > 1 else options["input_tensor"]
        self.announce(sent.numel())
        return self.collective(*arguments, **options)
