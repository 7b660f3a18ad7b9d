"""Deactivates a user, and kills the user's experiments and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gangline.domain.state import State
from gangline.domain.user import UserChange, UserView
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.v1 import scheduler_pb2
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.user import Users

# Kills that are under way at a time.
MAX_KILLS = 16
# A submit that another gateway had admitted may come in after the first pass.
MAX_PASSES = 3


class Deactivations:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader, users: Users) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._users = users

    async def run(self, name: str, change: UserChange) -> tuple[UserView, Sequence[int]]:
        """Returns the user, and the ids of the experiments that were killed. A repeated request goes on where the first
        one has stopped. Raises GanglineError `user.kill`, `user.not_all_killed`, and the errors of `Users.update`."""
        if change.is_active is not False:
            raise invalid("user.kill", "a user's experiments are killed with a deactivation only; deactivate the user")
        # First, so that the user starts nothing in between.
        view = await self._users.update(name, change)
        killed: set[int] = set()
        for _ in range(MAX_PASSES):
            left = {
                experiment.id
                for experiment in self._mirror.state.experiments.all()
                if experiment.owner == name and experiment.state is not State.TERMINAL
            } - killed
            if not left:
                break
            await self._kill(sorted(left), name)
            killed |= left
        return view, sorted(killed)

    async def _kill(self, experiment_ids: Sequence[int], name: str) -> None:
        places = asyncio.Semaphore(MAX_KILLS)

        async def kill(experiment_id: int) -> None:
            own_id = self._caller.request_id
            caller = replace(self._caller, request_id=f"{own_id[:150]}-{experiment_id}" if own_id else None)
            request = scheduler_pb2.SchedulerServiceKillExperimentRequest(experiment_id=experiment_id)
            async with places:
                await self._leader.change(caller, lambda scheduler: scheduler.KillExperiment, request)

        results = await asyncio.gather(*map(kill, experiment_ids), return_exceptions=True)
        failed = {
            number: result for number, result in zip(experiment_ids, results, strict=True)
            if isinstance(result, BaseException) and getattr(result, "code", "") != "experiment.not_found"
        }  # fmt: skip
        if failed:
            number, reason = next(iter(failed.items()))
            raise GanglineError(
                "user.not_all_killed",
                f"user {name} is deactivated, but {len(failed)} experiments could not be killed, such as {number}: "
                f"{reason}; send the same command again",
                ErrorKind.UNAVAILABLE,
            ) from reason
