"""Makes the process groups of a pipeline, and sends values inside a replica outside of a schedule.

Ranks of a replica follow one another. Machines have consecutive ranks, so replicas stay inside machines where they fit,
and otherwise the border between machines is a border between stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from gangline.pytorch.parallel.staged.layout import TensorShape


class Replicas:
    """Process groups of one trial. All ranks make it, and call its methods in step with their replica.

    stages: ranks of a replica. place, index: this rank's place in its replica, and the replica's index. count: of
    replicas. inside: group of this replica. across: group of the ranks with the same place in all replicas; None where
    there is one replica.
    """

    def __init__(self, stages: int, device: torch.device, timeout: timedelta | None = None) -> None:
        self.stages = stages
        self.device = device
        self._timeout = timeout
        rank, size = dist.get_rank(), dist.get_world_size()
        self.place, self.index, self.count = rank % stages, rank // stages, size // stages
        self.inside = self._own_group(range(stages))
        self.across: dist.ProcessGroup | None = None
        if self.count > 1:
            columns = [list(range(place, size, stages)) for place in range(stages)]
            self.across = self._make_groups(columns)[self.place]

    def group_of(self, places: Sequence[int]) -> dist.ProcessGroup | None:
        """Makes a group of these places for each replica; all ranks call it. Returns None where this rank is none of
        them."""
        if len(places) == self.stages:
            return self.inside
        group = self._own_group(places)
        return group if self.place in places else None

    def global_rank(self, place: int) -> int:
        return self.index * self.stages + place

    def share(self, tensors: Iterable[torch.Tensor], place: int) -> None:
        """Fills these tensors on all ranks of the replica with their values at a place."""
        for tensor in tensors:
            dist.broadcast(tensor, src=self.global_rank(place), group=self.inside)

    def share_number(self, number: int) -> int:
        """Returns the first rank's number on all ranks of the replica."""
        shared = torch.tensor(number)
        self.share([shared], 0)
        return int(shared)

    def share_bytes(self, content: bytes | None, place: int) -> bytes:
        """Returns the bytes of the rank at a place on all ranks of the replica."""
        length = torch.tensor([len(content or b"")])
        self.share([length], place)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if content is not None:
            data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        self.share([data], place)
        return bytes(data.tolist())

    def send(self, tensors: Iterable[torch.Tensor], place: int) -> None:
        for tensor in tensors:
            dist.send(tensor.contiguous(), self.global_rank(place), group=self.inside)

    def receive(self, shapes: Iterable[TensorShape], place: int) -> list[torch.Tensor]:
        tensors = [shape.make(self.device) for shape in shapes]
        for tensor in tensors:
            dist.recv(tensor, self.global_rank(place), group=self.inside)
        return tensors

    def _own_group(self, places: Iterable[int]) -> dist.ProcessGroup:
        rows = [[index * self.stages + place for place in places] for index in range(self.count)]
        return self._make_groups(rows)[self.index]

    def _make_groups(self, rows: Sequence[Sequence[int]]) -> list[dist.ProcessGroup]:
        return [dist.new_group(list(row), timeout=self._timeout) for row in rows]
