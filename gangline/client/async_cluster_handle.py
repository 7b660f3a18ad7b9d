"""The twin of gangline.client.cluster_handle for asyncio.

Written by scripts/generate_async_client.py from cluster_handle.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gangline.client import async_handle as handle
from gangline.domain.explanation import Explanation
from gangline.domain.state import AgentState, Availability
from gangline.domain.task import Task
from gangline.domain.view import AgentView

if TYPE_CHECKING:
    from gangline.client.async_experiment_calls import AsyncExperimentCalls


class AsyncAgent:
    """An agent. view: as of the last listing, with the allocations of its slots."""

    def __init__(self, client: AsyncExperimentCalls, view: AgentView) -> None:
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

    async def enable(self, slot_ids: Sequence[str] = ()) -> None:
        """Lets new work start on it again. slot_ids: limits the change to these slots. This and the next two methods
        are for administrators."""
        self.record = await self._client.enable_agent(self.id, slot_ids)

    async def drain(self, slot_ids: Sequence[str] = ()) -> None:
        """Lets its work run to the end; no new work starts there."""
        self.record = await self._client.drain_agent(self.id, slot_ids)

    async def disable(self, slot_ids: Sequence[str] = ()) -> None:
        """Stops its work, which checkpoints and waits for other slots; no new work starts there."""
        self.record = await self._client.disable_agent(self.id, slot_ids)


class AsyncJob:
    """A trial that runs or waits. task: as of the last listing, with its place in the queue and its reason to wait."""

    def __init__(self, client: AsyncExperimentCalls, task: Task) -> None:
        self._client = client
        self.task = task

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.task.trial.state})"

    @property
    def id(self) -> str:
        """Returns the id of its trial."""
        return self.task.trial.id

    async def trial(self) -> handle.AsyncTrial:
        return handle.AsyncTrial(self._client, await self._client.find_trial(self.id))

    async def experiment(self) -> handle.AsyncExperiment:
        return handle.AsyncExperiment(
            self._client, (await self._client.get_experiment(self.task.trial.experiment_id)).experiment
        )

    async def explain(self) -> Explanation:
        """Explains why it waits, what would start it and when, or where it runs."""
        return await self._client.explain(self.id)
