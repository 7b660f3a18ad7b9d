"""Compares the copies of tensors that several ranks keep.

Owns the fingerprints, which are cheap and tell only whether copies differ, and the search for the tensor that differs
most. The drift check calls both, on all ranks in step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist

from gangline.core.distributed import DistributedContext
from gangline.pytorch.data.checksum import sum_of_bits
from gangline.pytorch.parallel.shared.copies import Copies

# Relative to a tensor's largest value. Rounding stays below it; a gradient that was not exchanged soon exceeds it.
TOLERANCE = 1e-3
# Keeps a fingerprint and its negative within the int64 of the reduction.
_MODULUS = 1 << 62
# Of a group without this rank. No fingerprint and no negative of one is smaller.
_NOT_HERE = -_MODULUS

# For each name the checksum of a tensor, and its type and shape.
_Row = Mapping[str, Sequence[Any]]
# For each name the largest difference to the first copy, and the largest value.
_Sizes = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """Tensor whose copies differ."""

    name: str
    owner: str  # as in Copies
    # The difference over the tensor's largest value. It is infinite if a copy is no finite number, or if whole numbers,
    # shapes or types differ.
    ratio: float


def fingerprints(copies: Sequence[Copies]) -> list[int]:
    """Returns two numbers for each group of each of these Copies. `differ` needs their maxima over all ranks."""
    sums = iter(_checksums([tensor for each in copies for tensor in each.tensors.values()]))
    numbers: list[int] = []
    for each in copies:
        own_sums = islice(sums, len(each.tensors))
        own = sum((2 * place + 1) * value for place, value in enumerate(own_sums)) % _MODULUS
        for index in range(each.count):
            numbers += [own, -own] if index == each.index else [_NOT_HERE, _NOT_HERE]
    return numbers


def count_of(copies: Iterable[Copies]) -> int:
    """Returns how many numbers `fingerprints` returns for these Copies."""
    return 2 * sum(each.count for each in copies)


def differ(maxima: Sequence[int]) -> bool:
    """Returns whether copies differ. maxima: of `fingerprints`, over all ranks."""
    # The second number of a pair is the maximum of the negatives, so this compares the largest and the smallest one.
    return any(largest != -smallest for largest, smallest in zip(maxima[::2], maxima[1::2], strict=True))


def find_largest(copies: Sequence[Copies], distributed: DistributedContext) -> CopyDifference | None:
    """Returns the tensor whose copies differ most now, the same on all ranks; None where all are the same."""
    by_rank = distributed.allgather([(each.index, _row_of(each)) for each in copies])
    sizes = [_measure(each, [rows[place] for rows in by_rank]) for place, each in enumerate(copies)]
    worst: CopyDifference | None = None
    sizes_by_rank: list[list[_Sizes]] = distributed.allgather(sizes)
    for each, of_ranks in zip(copies, zip(*sizes_by_rank, strict=True), strict=True):
        for name, ratio in _ratios(of_ranks).items():
            if worst is None or ratio > worst.ratio:
                worst = CopyDifference(name, each.owner, ratio)
    return worst


def _row_of(copies: Copies) -> _Row:
    sums = _checksums(list(copies.tensors.values()))
    return {
        name: (checksum, f"{tensor.dtype} {list(tensor.shape)}")
        for (name, tensor), checksum in zip(copies.tensors.items(), sums, strict=True)
    }


def _measure(copies: Copies, rows: Sequence[tuple[int | None, _Row]]) -> _Sizes:
    """Returns the differences of this rank's tensors to the first copy. Tensors that differ in another group alone are
    listed too, with no difference: a group may have a part of a tensor whose largest value is in another part."""
    by_group: dict[int, list[_Row]] = {}
    for index, row in rows:
        if index is not None:
            by_group.setdefault(index, []).append(row)
    own = by_group.get(copies.index, []) if copies.index is not None else []
    sizes: _Sizes = {}
    for name in sorted({name for group in by_group.values() for name in _names_that_differ(group)}):
        tensor, entries = copies.tensors.get(name), [row[name] for row in own if name in row]
        if tensor is None or len(entries) < len(own):
            # Not all copies have a tensor of this name.
            if entries:
                sizes[name] = (math.inf, 0.0)
            continue
        numbers = tensor.detach()
        difference = 0.0
        if any(entry[1:] != entries[0][1:] for entry in entries):
            difference = math.inf
        elif any(entry != entries[0] for entry in entries):
            difference = _difference(numbers, copies.group)
        sizes[name] = (difference, float(numbers.abs().max()) if _is_measured(numbers) else 0.0)
    return sizes


def _names_that_differ(rows: Sequence[_Row]) -> list[str]:
    """Returns the names whose tensors are not the same on all ranks of a group."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]


def _difference(own: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    """Returns the largest difference to the copy of the group's first rank. All ranks of the group call it in step."""
    if not _is_measured(own):
        return math.inf
    first = own.clone()
    dist.broadcast(first, src=dist.get_global_rank(group, 0) if group is not None else 0, group=group)
    difference = float((own - first).abs().max())
    # A type of few digits rounds in steps that are larger than the tolerance, so its differences count less.
    coarse = 4 * torch.finfo(own.dtype).eps / TOLERANCE if own.dtype.is_floating_point else 1.0
    return difference / max(1.0, coarse) if math.isfinite(difference) else math.inf


def _ratios(of_ranks: Iterable[_Sizes]) -> dict[str, float]:
    differences: dict[str, float] = {}
    scales: dict[str, float] = {}
    for sizes in of_ranks:
        for name, (difference, scale) in sizes.items():
            differences[name] = max(differences.get(name, 0.0), difference)
            scales[name] = max(scales.get(name, 0.0), scale if math.isfinite(scale) else math.inf)
    return {name: _ratio(difference, scales[name]) for name, difference in differences.items()}


def _ratio(difference: float, scale: float) -> float:
    if not math.isfinite(difference) or not math.isfinite(scale):
        return math.inf
    return difference / scale if scale else 0.0


def _is_measured(tensor: torch.Tensor) -> bool:
    """Returns whether a difference may be rounding. Whole numbers differ or do not."""
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


@torch.no_grad()
def _checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns the checksum of each tensor, as whole numbers."""
    if not tensors:
        return []
    sums = [sum_of_bits(tensor.detach()) for tensor in tensors]
    # One transfer from the device for all tensors.
    numbers: list[int] = torch.stack([checksum.to(sums[0].device, torch.int64) for checksum in sums]).tolist()
    return numbers
