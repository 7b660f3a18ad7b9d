"""Shows the effect of a change of the queue before it is made: the planner decides on the present snapshot and on a
changed one, and the two plans are compared.

The planner runs as `gangline simulate` in a process of its own, so neither the leader nor the gateway waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.domain.settled.reading import settle
from gangline.domain.state import ReasonCode
from gangline.errors import ErrorKind, GanglineError, conflict, invalid, unavailable
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.parsing import off_loop
from services.gateway.usecase.shared.preview_limit import PreviewLimit
from services.gateway.usecase.shared.view import Views

PLANNER = (sys.executable, "-P", "-m", "services.scheduler.simulator", "-", "--json")
PLAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PlannedStanding:
    """What a plan decides about one trial."""

    is_starting: bool = False  # whether it gets slots at once
    is_stopping: bool = False  # whether it has to give its slots back
    queue_place: int = 0  # from 1 among those that wait; 0 if it does not wait or is paused
    message: str = ""  # why it waits
    eta_at: float = 0.0  # estimated time of its start; 0 if not known


NOWHERE = PlannedStanding()


@dataclass(frozen=True, slots=True)
class Difference:
    """A trial for which the two plans differ."""

    trial_id: str
    before: PlannedStanding
    after: PlannedStanding


@dataclass(frozen=True, slots=True)
class Preview:
    pool: str
    differences: tuple[Difference, ...]  # first those of the changed experiment, then the others in the new order
    num_waiting: int  # trials that wait after the change


class QueuePreview:
    def __init__(self, caller: Caller, mirror: Watched, views: Views, leader: Leader, limit: PreviewLimit) -> None:
        self._caller = caller
        self._mirror = mirror
        self._views = views
        self._leader = leader
        self._limit = limit

    async def preview(self, experiment_id: int, change: ResourceChange | QueueMove) -> Preview:
        """Returns the effect of a change of priority, weight, cap or position. Raises GanglineError
        `experiment.not_found`, `preview.*`, and the errors of the leader."""
        await self._views.confirm(experiment_id=experiment_id)
        if isinstance(change, QueueMove) and not self._sees(change.anchor_experiment_id):
            raise _no_anchor(group_of(change.anchor_experiment_id))
        pool = settle(self._views.experiment(experiment_id).config_json, "resources").resources.pool_name
        answer = await self._leader.call(
            lambda scheduler: scheduler.GetSnapshot, scheduler_pb2.GetSnapshotRequest(pool=pool)
        )
        before = answer.snapshot_json
        after = await off_loop(change_snapshot, before, experiment_id, change)
        async with self._limit.enter(self._caller.name):
            plans = await asyncio.gather(_plan(before), _plan(after))
        old, new = (standings_of(plan) for plan in plans)
        differences = tuple(map(self._hidden, compare(old, new, experiment_id)))
        return Preview(pool, differences, sum(bool(one.queue_place) for one in new.values()))

    def _sees(self, experiment_id: int) -> bool:
        """Returns True also for an experiment that does not exist."""
        state, key = self._mirror.state, keys.experiment(experiment_id)
        return state.whole.experiments.find(key) is None or state.experiments.find(key) is not None

    def _hidden(self, difference: Difference) -> Difference:
        """Returns the difference without the names of what the caller does not see."""
        hide = self._mirror.state.hide_ids
        before, after = (
            replace(standing, message=hide(standing.message)) for standing in (difference.before, difference.after)
        )
        return Difference(hide(difference.trial_id), before, after)


def change_snapshot(snapshot_json: str, experiment_id: int, change: ResourceChange | QueueMove) -> str:
    """Returns the snapshot as it is after the change. Raises GanglineError `preview.*`."""
    document = json.loads(snapshot_json)
    group = group_of(experiment_id)
    tasks = [task for task in document["tasks"] if task["group"] == group]
    if not tasks:
        raise conflict("preview.idle", f"no trial of experiment {experiment_id} runs or waits, so nothing would change")
    if isinstance(change, QueueMove):
        values = _moved(document, group, change)
    else:
        values = {} if change.priority is None else {"priority": change.priority}
    for task in tasks:
        task.update(values)
    for entry in document["groups"]:
        if entry["id"] == group:
            entry.update({name: value for name, value in values.items() if name == "priority"})
            if isinstance(change, ResourceChange) and change.weight is not None:
                entry["weight"] = change.weight
            if isinstance(change, ResourceChange) and change.max_slots is not None:
                entry["max_slots"] = change.max_slots or None
    return json.dumps(document)


def group_of(experiment_id: int) -> str:
    """Returns the name of the experiment's trials in the planner's snapshot."""
    return f"experiment {experiment_id}"


def _no_anchor(anchor: str) -> GanglineError:
    return conflict("preview.anchor", f"no trial of {anchor} runs or waits in this pool; name another one")


def _moved(document: Mapping[str, Any], group: str, move: QueueMove) -> dict[str, Any]:
    """Returns the priority and the position beside the anchor."""
    if document["policy"] == "fair_share":
        raise conflict(
            "preview.no_order", "this pool gives slots by shares, so its queue has no order; change the weight"
        )
    anchor = group_of(move.anchor_experiment_id)
    if anchor == group:
        raise invalid("preview.same", f"{group} cannot be moved relative to itself; name another one")
    anchors = [task for task in document["tasks"] if task["group"] == anchor]
    if not anchors:
        raise _no_anchor(anchor)
    priority, position = anchors[0]["priority"], anchors[0]["queue_position"] or 0.0
    others = {
        task["queue_position"] or 0.0
        for task in document["tasks"]
        if task["group"] not in (group, anchor) and task["priority"] == priority
    }
    if move.is_behind:
        beyond = min((other for other in others if other > position), default=position + 2.0)
    else:
        beyond = max((other for other in others if other < position), default=position - 2.0)
    return {"priority": priority, "queue_position": (position + beyond) / 2}


async def _plan(snapshot_json: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *PLANNER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PLAN_SECONDS):
            output, problem = await process.communicate(snapshot_json.encode())
    except TimeoutError:
        raise unavailable("preview.slow", f"the planner took more than {PLAN_SECONDS:g} s; ask again later") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        text = problem.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise GanglineError("preview.failed", f"the planner cannot decide this: {text}", ErrorKind.INTERNAL)
    return json.loads(output)


def standings_of(plan: Mapping[str, Any]) -> dict[str, PlannedStanding]:
    """Returns what a plan decides, by trial."""
    standings = {trial_id: PlannedStanding(is_starting=True) for trial_id in plan["to_allocate"]}
    place = 0
    for trial_id, reason in plan["reasons"].items():
        # The same places as in the list of jobs: a paused trial has none.
        waits = reason["code"] != ReasonCode.PAUSED.lower()
        place += waits
        if trial_id not in standings:
            standings[trial_id] = PlannedStanding(
                queue_place=place if waits else 0, message=reason["message"], eta_at=reason["eta_at"] or 0.0
            )
    # An allocation's id is that of its trial and the number of its attempt.
    for allocation_id in plan["to_release"]:
        standings[allocation_id.rpartition(".")[0]] = PlannedStanding(is_stopping=True)
    return standings


def compare(
    before: Mapping[str, PlannedStanding], after: Mapping[str, PlannedStanding], experiment_id: int
) -> tuple[Difference, ...]:
    """Returns the differences. Messages differ with every plan, so they alone make no difference."""
    trial_ids = dict.fromkeys([*after, *before])
    differences = [Difference(id_, before.get(id_, NOWHERE), after.get(id_, NOWHERE)) for id_ in trial_ids]
    different = [difference for difference in differences if _core(difference.before) != _core(difference.after)]
    own = f"{experiment_id}."
    return tuple(sorted(different, key=lambda difference: not difference.trial_id.startswith(own)))


def _core(standing: PlannedStanding) -> tuple[object, ...]:
    return standing.is_starting, standing.is_stopping, standing.queue_place, round(standing.eta_at)
