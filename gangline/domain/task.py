"""PURE: a trial that holds slots or waits for them, as the list of tasks and the queue show it. See gateway.proto."""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Reason, Request, shrunk_reason
from gangline.domain.experiment import Trial
from gangline.domain.history import ProgressPoint
from gangline.domain.state import TaskKind


@dataclass(frozen=True, slots=True)
class Task:
    """A trial with its slots or its request."""

    trial: Trial
    experiment_name: str
    allocation: Allocation | None = None  # slots that it holds; None if it holds none
    request: Request | None = None  # slots for which it waits; None if it waits for none
    reason: Reason | None = None  # why it waits; None if it does not, or while no scheduler leads
    # from 1, in the order in which its pool considers requests; 0 if it does not wait, is paused or no scheduler leads
    queue_place: int = 0
    # Priority of its experiment, else of its pool. None if it holds slots and no scheduler has reported the pool's yet.
    priority: int | None = None
    weight: float = 1.0  # share of a pool of type fair_share, relative to other experiments
    owner: str = ""  # user who made the experiment
    # its newest report; None before the first one, and while the gateway cannot read its database
    progress: ProgressPoint | None = None
    task_kind: TaskKind | None = None  # kind of its experiment; None for a training

    @property
    def pool(self) -> str:
        """Returns the pool; empty for a trial that neither holds slots nor waits for any."""
        if self.allocation is not None:
            return self.allocation.pool
        return self.request.pool if self.request is not None else ""

    @property
    def num_slots(self) -> int:
        """Returns how many slots it holds or asks for."""
        if self.allocation is not None:
            return self.allocation.num_slots
        return self.request.slots if self.request is not None else 0

    @property
    def size_text(self) -> str:
        """Returns `num_slots` as text: "2 of 4" for a trial that runs on fewer slots than it asked for."""
        full_slots = self.allocation.full_slots if self.allocation is not None else 0
        return f"{self.num_slots} of {full_slots}" if full_slots else str(self.num_slots)

    @property
    def shrunk_reason(self) -> Reason | None:
        """Returns why it runs on fewer slots; None when it does not."""
        return shrunk_reason(self.allocation) if self.allocation is not None else None

    @property
    def submitted_at(self) -> float:
        """Returns the time of the request, else of the trial's creation, in Unix seconds."""
        return self.request.submitted_at if self.request is not None else self.trial.created_at
