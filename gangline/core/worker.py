"""The place of this process among the ranks of its trial.

Where every slot runs the entrypoint, the trial runner has given each process its place. Where the entrypoint runs once
on each machine, the processes that it starts are the ranks. They have the place that their launcher sets in the
environment, as torchrun does, or that a DistributedContext names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gangline.cluster_info import ClusterInfo


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    rank: int
    local_rank: int


_named: WorkerPlace | None = None


def name_place(rank: int, local_rank: int) -> None:
    """Notes the place that the script names for this process."""
    global _named  # noqa: PLW0603  a process has one place
    _named = WorkerPlace(rank, local_rank)


def find_place(cluster: ClusterInfo) -> WorkerPlace:
    """Returns the place of this process. The process that runs the entrypoint once has that of its first slot."""
    if not cluster.runs_once:
        return WorkerPlace(cluster.rank, int(os.environ.get("LOCAL_RANK", "0")))
    if _named is not None:
        return _named
    rank, local_rank = os.environ.get("RANK", ""), os.environ.get("LOCAL_RANK", "0")
    if rank.isdigit() and local_rank.isdigit():
        return WorkerPlace(int(rank), int(local_rank))
    return WorkerPlace(cluster.rank, 0)


def _forget() -> None:
    """Forgets the place in a fork, which may get one of its own."""
    global _named  # noqa: PLW0603  a process has one place
    _named = None


os.register_at_fork(after_in_child=_forget)
