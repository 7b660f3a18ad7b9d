"""Agents, slots, tasks, jobs and pools in Determined's form. A job is an experiment, a task a trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gangline.domain.resource import Slot
from gangline.domain.state import Availability, SlotKind, State
from gangline.domain.task import Task
from gangline.domain.view import AgentView
from gangline.errors import invalid
from services.gateway.determined.call import Call, Routes, page_of, start_instant
from services.gateway.determined.task import listed_id
from services.gateway.determined.values import Json, read_queue_control

_DEVICES = {SlotKind.CPU: "TYPE_CPU", SlotKind.GPU: "TYPE_CUDA"}


async def list_agents(call: Call) -> Json:
    shown, pagination = page_of(call.cases.agents.list(), call)
    return {"agents": [_describe_agent(view) for view in shown], "pagination": pagination}


async def find_agent(call: Call) -> Json:
    return {"agent": _describe_agent(call.cases.agents.view(call.path["agent"]))}


async def enable_agent(call: Call) -> Json:
    return await _set_agent(call, Availability.ENABLED)


async def disable_agent(call: Call) -> Json:
    return await _set_agent(call, _off(call))


async def _set_agent(call: Call, availability: Availability) -> Json:
    agent_id = call.path["agent"]
    await call.cases.agents.update(agent_id, (), availability)
    return await find_agent(call)


async def enable_slot(call: Call) -> Json:
    return await _set_slot(call, Availability.ENABLED)


async def disable_slot(call: Call) -> Json:
    return await _set_slot(call, _off(call))


async def _set_slot(call: Call, availability: Availability) -> Json:
    agent_id = call.path["agent"]
    slot_id = f"{agent_id}/{call.path['slot']}"
    await call.cases.agents.update(agent_id, (slot_id,), availability)
    view = call.cases.agents.view(agent_id)
    return {"slot": next(_describe_slot(view, slot) for slot in view.agent.known_slots if slot.id == slot_id)}


def _off(call: Call) -> Availability:
    return Availability.DRAINING if call.body.get("drain") else Availability.DISABLED


def _describe_agent(view: AgentView) -> Json:
    """Returns v1Agent."""
    agent = view.agent
    by_kind: dict[str, list[Slot]] = defaultdict(list)
    by_model: dict[str, list[Slot]] = defaultdict(list)
    for slot in agent.known_slots:
        by_kind[_DEVICES[slot.kind]].append(slot)
        by_model[slot.model or slot.kind.value].append(slot)
    allocation_ids = sorted(set(view.allocation_id_by_slot_id.values()))
    return {
        "id": agent.id,
        "version": agent.version,
        "registeredTime": start_instant(agent.registered_at),
        "enabled": agent.availability is Availability.ENABLED,
        "draining": agent.availability is Availability.DRAINING,
        "resourcePools": [agent.pool],
        "addresses": [agent.hostname] if agent.hostname else [],
        "slots": {_local(slot): _describe_slot(view, slot) for slot in agent.known_slots},
        "containers": {each: _container(each) for each in allocation_ids},
        "slotStats": {
            "typeStats": {name: _count(slots) for name, slots in by_kind.items()},
            "brandStats": {name: _count(slots) for name, slots in by_model.items()},
        },
    }


def _describe_slot(view: AgentView, slot: Slot) -> Json:
    holder = view.allocation_id_by_slot_id.get(slot.id)
    return {
        "id": _local(slot),
        "enabled": slot.is_healthy and {slot.availability, view.agent.availability} == {Availability.ENABLED},
        "draining": Availability.DRAINING in (slot.availability, view.agent.availability),
        "device": {"id": 0, "brand": slot.model, "uuid": slot.uuid, "type": _DEVICES[slot.kind]},
        **({"container": _container(holder)} if holder else {}),
    }


def _local(slot: Slot) -> str:
    return slot.id.partition("/")[2]


def _container(allocation_id: str) -> Json:
    """Returns the container that stands for an allocation: work here has none."""
    return {"id": allocation_id, "parent": "", "state": "STATE_RUNNING", "devices": [], "permissionDenied": False}


def _count(slots: Sequence[Slot]) -> Json:
    return {
        "total": len(slots),
        "disabled": sum(slot.availability is not Availability.ENABLED for slot in slots),
        "draining": sum(slot.availability is Availability.DRAINING for slot in slots),
        "states": {},
    }


async def list_tasks(call: Call) -> Json:
    tasks = await call.cases.queue.list_tasks()
    summaries = [_describe_task(task) for task in tasks]
    return {"allocationIdToSummary": {summary["allocationId"]: summary for summary in summaries}}


def _describe_task(task: Task) -> Json:
    """Returns v1AllocationSummary. A trial that waits goes by the id of the attempt that comes next."""
    allocation = task.allocation
    described: Json = {
        "taskId": listed_id(task.trial.id),
        "allocationId": allocation.id if allocation is not None else f"{task.trial.id}.{task.trial.attempts + 1}",
        "name": f"{(task.task_kind or 'Trial').capitalize()} {task.trial.id} ({task.experiment_name})",
        "registeredTime": start_instant(task.submitted_at),
        "resourcePool": task.pool,
        "slotsNeeded": task.num_slots,
        "schedulerType": "priority",
        "priority": task.priority or 0,
        "proxyPorts": [],
    }
    if allocation is not None:
        described["resources"] = [
            {
                "resourcesId": f"{allocation.id}/{member.agent_id}",
                "resourcesType": "docker-container",
                "allocationId": allocation.id,
                "containerId": allocation.id,
                "agentDevices": {member.agent_id: {"devices": []}},
            }
            for member in allocation.members
        ]
    return described


async def list_jobs(call: Call) -> Json:
    """Lists experiments that hold slots or wait for them, in the order of the queue."""
    pool = call.query.get("resourcePool", "")
    tasks = await call.cases.queue.list_tasks()
    jobs: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        if pool in ("", task.pool):
            jobs[task.trial.experiment_id].append(task)
    ordered = list(jobs.values())
    if call.query.get("orderBy") == "ORDER_BY_DESC":
        ordered.reverse()
    shown, pagination = page_of(ordered, call)
    return {"jobs": [{"full": _describe_job(call, tasks)} for tasks in shown], "pagination": pagination}


def _describe_job(call: Call, tasks: Sequence[Task]) -> Json:
    """Returns v1Job of an experiment, from all of its tasks."""
    first = tasks[0]
    experiment_id = first.trial.experiment_id
    places = [task.queue_place for task in tasks if task.allocation is None and task.queue_place]
    allocated = sum(task.allocation.num_slots for task in tasks if task.allocation is not None)
    return {
        "jobId": str(experiment_id),
        "entityId": str(experiment_id),
        "name": first.experiment_name,
        "type": f"TYPE_{first.task_kind or 'EXPERIMENT'}",
        "username": first.owner,
        "userId": call.authenticator.number_of_user(first.owner),
        "resourcePool": first.pool,
        "isPreemptible": first.task_kind is None,
        "submissionTime": start_instant(first.submitted_at),
        "workspaceId": 1,
        "allocatedSlots": allocated,
        "requestedSlots": sum(task.num_slots for task in tasks),
        "priority": first.priority or 0,
        "weight": first.weight,
        "summary": {
            "state": "STATE_SCHEDULED" if allocated else "STATE_QUEUED",
            "jobsAhead": 0 if allocated else max(0, min(places, default=1) - 1),
        },
    }


async def update_queue(call: Call) -> Json:
    """Changes priorities, weights and places, one after another."""
    updates = call.body.get("updates")
    if not isinstance(updates, list) or not updates or not all(isinstance(update, dict) for update in updates):
        raise invalid("request.invalid", "updates is no list of changes")
    for experiment_id, change in [read_queue_control(update) for update in updates]:
        await call.cases.experiments.update(experiment_id, (change,))
    return {}


async def list_pools(call: Call) -> Json:
    """Lists the pools that have agents, or work that waits for some."""
    tasks = await call.cases.queue.list_tasks()
    views = call.cases.agents.list()
    names = sorted({*(view.agent.pool for view in views), *(task.pool for task in tasks if task.pool)})
    pools = [
        _describe_pool(
            name, [view for view in views if view.agent.pool == name], [task for task in tasks if task.pool == name]
        )
        for name in names
    ]
    shown, pagination = page_of(pools, call)
    return {"resourcePools": shown, "pagination": pagination}


def _describe_pool(name: str, views: Sequence[AgentView], tasks: Iterable[Task]) -> Json:
    """Returns v1ResourcePool. What is of clouds, containers or auxiliary work is empty."""
    slots = [slot for view in views for slot in view.agent.slots]
    kinds = {slot.kind for slot in slots}
    states = [task.trial.state for task in tasks]
    num_queued = sum(state is State.QUEUED for state in states)
    absent = (
        "accelerator", "agentDockerImage", "agentDockerNetwork", "agentDockerRuntime", "agentFluentImage",
        "clusterName", "containerStartupScript", "imageId", "instanceType", "location", "masterCertName", "masterUrl",
        "startupScript",
    )  # fmt: skip
    zero = (
        "auxContainerCapacity", "auxContainerCapacityPerAgent", "auxContainersRunning", "maxAgentStartingPeriod",
        "maxIdleAgentPeriod", "minAgents",
    )  # fmt: skip
    return {
        **dict.fromkeys(absent, ""),
        **dict.fromkeys(zero, 0),
        "name": name,
        "description": "",
        "type": "RESOURCE_POOL_TYPE_STATIC",
        "details": {"priorityScheduler": {"preemption": True, "defaultPriority": 42}},
        "defaultAuxPool": name == "default",
        "defaultComputePool": name == "default",
        "numAgents": len(views),
        "maxAgents": len(views),
        "preemptible": True,
        "resourceManagerMetadata": {},
        "schedulerFittingPolicy": "FITTING_POLICY_BEST",
        "schedulerType": "SCHEDULER_TYPE_PRIORITY",
        "slotType": _DEVICES[SlotKind.GPU if SlotKind.GPU in kinds else SlotKind.CPU],
        "slotsAvailable": len(slots),
        "slotsUsed": sum(len(view.allocation_id_by_slot_id) for view in views),
        "slotsPerAgent": max((len(view.agent.slots) for view in views), default=0),
        "stats": {
            "state": "STATE_UNSPECIFIED", "queuedCount": num_queued, "scheduledCount": len(states) - num_queued,
        },
    }  # fmt: skip


ROUTES: Routes = (
    ("GET", "/api/v1/agents", list_agents),
    ("GET", "/api/v1/agents/{agent}", find_agent),
    ("POST", "/api/v1/agents/{agent}/enable", enable_agent),
    ("POST", "/api/v1/agents/{agent}/disable", disable_agent),
    ("POST", "/api/v1/agents/{agent}/slots/{slot}/enable", enable_slot),
    ("POST", "/api/v1/agents/{agent}/slots/{slot}/disable", disable_slot),
    ("GET", "/api/v1/tasks", list_tasks),
    ("GET", "/api/v1/job-queues-v2", list_jobs),
    ("POST", "/api/v1/job-queues", update_queue),
    ("GET", "/api/v1/resource-pools", list_pools),
)
