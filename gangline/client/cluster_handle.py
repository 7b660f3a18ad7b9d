"""The objects of the SDK that show the cluster, each with a reference to its client: agent and job.

They behave as those of handle.py. scripts/generate_async_client.py writes async_cluster_handle.py from this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gangline.client import handle
from gangline.domain.explanation import Explanation
from gangline.domain.state import AgentState, Availability
from gangline.domain.task import Task
from gangline.domain.view import AgentView

if TYPE_CHECKING:
    from gangline.client.experiment_calls import ExperimentCalls


class Agent:
    """An agent. view: as of the last listing, with the allocations of its slots."""

    def __init__(self, client: ExperimentCalls, view: AgentView) -> None:
        self._client = client
        self.record = view.agent
        self.allocations = dict(view.allocation_id_by_slot_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.state}, {self.availability})"

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def state(self) -> AgentState:
        return self.record.state

    @property
    def availability(self) -> Availability:
        return self.record.availability

    def enable(self, slot_ids: Sequence[str] = ()) -> None:
        """Lets new work start on it again. slot_ids: limits the change to these slots. This and the next two methods
        are for administrators."""
        self.record = self._client.enable_agent(self.id, slot_ids)

    def drain(self, slot_ids: Sequence[str] = ()) -> None:
        """Lets its work run to the end; no new work starts there."""
        self.record = self._client.drain_agent(self.id, slot_ids)

    def disable(self, slot_ids: Sequence[str] = ()) -> None:
        """Stops its work, which checkpoints and waits for other slots; no new work starts there."""
        self.record = self._client.disable_agent(self.id, slot_ids)


class Job:
    """A trial that runs or waits. task: as of the last listing, with its place in the queue and its reason to wait."""

    def __init__(self, client: ExperimentCalls, task: Task) -> None:
        self._client = client
        self.task = task

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.task.trial.state})"

    @property
    def id(self) -> str:
        """Returns the id of its trial."""
        return self.task.trial.id

    def trial(self) -> handle.Trial:
        return handle.Trial(self._client, self._client.find_trial(self.id))

    def experiment(self) -> handle.Experiment:
        return handle.Experiment(self._client, self._client.get_experiment(self.task.trial.experiment_id).experiment)

    def explain(self) -> Explanation:
        """Explains why it waits, what would start it and when, or where it runs."""
        return self._client.explain(self.id)
