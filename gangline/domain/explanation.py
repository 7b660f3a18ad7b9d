"""PURE: explains why an experiment or a trial runs or waits: its tasks, and the things that block it.

The planner decides why a request waits (Reason). This module resolves the ids in that reason, so that a reader
understands them, and makes the sentences about agents that are out of use. The gateway and the SDK make the same
explanation with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Exclusion, Reason
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, Availability, State
from gangline.domain.task import Task
from gangline.errors import not_found


@dataclass(frozen=True, slots=True)
class Blocker:
    """A thing that a request waits for."""

    id: str
    kind: str  # "allocation", "trial" or "agent"; "gone" for an id that no longer exists
    text: str  # a part of a sentence that describes it


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    """A task with its blockers."""

    task: Task
    blockers: tuple[Blocker, ...] = ()  # the things that the ids in the task's reason name, in their order


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an experiment."""

    experiment: Experiment
    reason: Reason | None = None  # why no further trial starts (paused, the search waits); None if nothing prevents it
    # tasks of the requested trial, or of those trials of the experiment that have not ended
    tasks: tuple[TaskExplanation, ...] = ()


def explain(
    experiment: Experiment,
    reason: Reason | None,
    trials: Iterable[Trial],
    tasks: Sequence[Task],
    agents: Iterable[Agent],
    *,
    trial_id: str = "",
) -> Explanation:
    """Explains an experiment or one of its trials. trials: of the experiment. tasks: of the whole cluster. trial_id:
    limits the explanation to this trial, ended or not.

    Raises GanglineError `trial.not_found`.
    """
    wanted = [trial for trial in trials if _is_asked_for(trial, trial_id)]
    if trial_id and not wanted:
        raise not_found(
            "trial.not_found",
            f"experiment {experiment.id} has no trial {trial_id}; list them with: "
            f"gangline experiment trials {experiment.id}",
        )
    task_by_trial_id = {task.trial.id: task for task in tasks}
    agent_by_id = {agent.id: agent for agent in agents}
    explained = []
    for trial in wanted:
        task = task_by_trial_id.get(trial.id, Task(trial, experiment.name))
        ids = task.reason.blocking_ids if task.reason is not None else ()
        explained.append(TaskExplanation(task, tuple(_blocker(id_, task_by_trial_id, agent_by_id) for id_ in ids)))
    return Explanation(experiment, reason, tuple(explained))


def place_of(allocation: Allocation) -> str:
    """Returns "agent-1 (2 slots), agent-2 (2 slots)". With fewer slots than asked for it is "agent-1 (2 slots), in all
    2 of 4 slots"."""
    places = [f"{member.agent_id} ({_slots(len(member.slot_ids))})" for member in allocation.members]
    return ", ".join([*places, f"in all {allocation.size_text}"] if allocation.full_slots else places)


def _is_asked_for(trial: Trial, trial_id: str) -> bool:
    return trial.id == trial_id if trial_id else trial.state is not State.TERMINAL


def _blocker(id_: str, task_by_trial_id: dict[str, Task], agent_by_id: dict[str, Agent]) -> Blocker:
    if id_ in agent_by_id:
        return Blocker(id_, "agent", _agent_words(agent_by_id[id_]))
    waiting = task_by_trial_id.get(id_)
    if waiting is not None:
        return Blocker(id_, "trial", _task_words(waiting))
    holder = task_by_trial_id.get(id_.rpartition(".")[0])
    if holder is not None and holder.allocation is not None and holder.allocation.id == id_:
        return Blocker(id_, "allocation", _task_words(holder))
    return Blocker(id_, "gone", "is not there any more")


def _task_words(task: Task) -> str:
    """Returns a description such as: trial 7.1 of experiment 7 digits, RUNNING on agent-1 (2 slots)."""
    words = f"trial {task.trial.id} of experiment {task.trial.experiment_id} {task.experiment_name}"
    if task.allocation is not None:
        return f"{words}, {task.allocation.state} on {place_of(task.allocation)}"
    place = f", place {task.queue_place} in pool {task.pool!r}" if task.queue_place else ""
    return f"{words}, waits for {_slots(task.num_slots)}{place}"


def _agent_words(agent: Agent) -> str:
    """Returns a description such as: agent in pool 'default', DRAINING, 1 of 4 slots DISABLED."""
    words = [f"agent in pool {agent.pool!r}"]
    if agent.state is AgentState.LOST:
        words.append("LOST")
    if agent.availability is not Availability.ENABLED:
        words.append(str(agent.availability))
    words += [agent.problem] if agent.problem else []
    for availability in (Availability.DRAINING, Availability.DISABLED):
        count = sum(slot.availability is availability for slot in agent.slots)
        words += [f"{count} of {_slots(len(agent.slots))} {availability}"] if count else []
    unhealthy = sum(not slot.is_healthy for slot in agent.slots)
    return ", ".join(words + ([f"{unhealthy} of {_slots(len(agent.slots))} unhealthy"] if unhealthy else []))


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"


def describe_exclusion(exclusion: Exclusion) -> str:
    return f"excluded for this trial until {clock_time(exclusion.until_at)}: {exclusion.reason}"


def describe_quarantine(agent: Agent) -> str:
    return f"out of use until {clock_time(agent.quarantined_until_at)}: {agent.quarantine_reason}"


def troubles_of(agent: Agent, now: float) -> list[str]:
    """Returns why no work starts on the agent, beside what operators set; empty when it has no trouble."""
    quarantine = describe_quarantine(agent) if agent.quarantined_until_at > now else ""
    return [trouble for trouble in (agent.problem, quarantine) if trouble]


def describe_undelivered(agents: Iterable[Agent]) -> dict[str, str]:
    """Returns, by trial, what its history lacks until a gateway takes it."""
    parts_by_trial: dict[str, list[str]] = {}
    for agent in sorted(agents, key=lambda agent: agent.id):
        for waiting in agent.undelivered:
            attempt = waiting.allocation_id.rpartition(".")[2]
            where = f"those of attempt {attempt} on agent {agent.id} since {clock_time(waiting.since_at)}"
            parts_by_trial.setdefault(waiting.trial_id, []).append(f"{where} ({waiting.num_bytes} bytes)")
    return {
        trial_id: f"logs and metrics are missing until a gateway takes them: {', '.join(parts)}"
        for trial_id, parts in parts_by_trial.items()
    }


def clock_time(at: float) -> str:
    """Returns the time of day of Unix seconds: "14:05:06 UTC"."""
    minutes, seconds = divmod(int(at) % 86400, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02} UTC"
