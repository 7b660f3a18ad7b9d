"""PURE: when the next event is due, and what happens when a state has waited for too long.

Every state that waits for another process has a deadline; RUNNING waits for none.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangline.domain.allocation import Allocation, ExitReport, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.state import AgentState, ExitKind, State
from services.scheduler.state.records import Draft, Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.transition.exit import member_exited, unended_agents
from services.scheduler.transition.stop import StopOrder, stop_allocation


def next_deadline(
    allocations: Iterable[Allocation],
    requests: Iterable[Request],
    now: float,
    patient_until: float = 0.0,
    agents: Iterable[Agent] = (),
) -> float | None:
    """Returns the first instant at which work is due without an outside event; None when nothing is due.

    patient_until: a new leader enforces no allocation's deadline before this time, so that agents can come back.
    """
    waits = []
    for allocation in allocations:
        waits += [max(allocation.deadline_at, patient_until)] if allocation.deadline_at else []
        # A smaller attempt may grow from then on, so a plan is due.
        waits += [allocation.grow_at] if allocation.grow_at > now else []
    for request in requests:
        # Thousands may wait, and few of them for a time.
        if request.not_before_at > now:
            waits.append(request.not_before_at)
        if request.shrink_at > now:
            waits.append(request.shrink_at)
        if request.exclusions:
            waits += [exclusion.until_at for exclusion in request.exclusions]
    waits += [agent.quarantined_until_at for agent in agents if agent.quarantined_until_at > now]
    return min(waits, default=None)


def to_readmit(requests: Iterable[Request], now: float) -> list[str]:
    """Returns the ids of waiting trials that no longer have to avoid one of their agents."""
    return [
        request.trial_id
        for request in requests
        if request.exclusions and any(exclusion.until_at <= now for exclusion in request.exclusions)
    ]


def overdue(allocations: Iterable[Allocation], now: float, patient_until: float = 0.0) -> list[str]:
    """Returns the ids of allocations whose deadline has passed."""
    if now < patient_until:
        return []
    return [allocation.id for allocation in allocations if allocation.deadline_at and allocation.deadline_at <= now]


def expired(
    records: Records,
    allocation_id: str,
    accepted_agents: frozenset[str],
    unbegun_agents: frozenset[str],
    *,
    rules: Rules,
    now: float,
) -> StateChange:
    """Ends an allocation whose deadline has passed.

    STARTING: the gang is stopped, with the agent at fault on record. STOPPING: members that never reported their end
    count as lost. Members on a lost agent are left out if the trial would start again: their runner may still train,
    and they end once it has stopped for certain. accepted_agents: those that have accepted, so that the message can
    name the others. unbegun_agents: those on which the user's command has certainly not begun.
    """
    allocation = records.find(Allocation, allocation_id)
    if allocation is None or not allocation.deadline_at or allocation.deadline_at > now:
        return StateChange()
    draft = Draft(records)
    if allocation.state is State.STARTING:
        failure = _late_start(allocation, accepted_agents, rules, now)
        deadline_at = now + rules.kill_grace_seconds + rules.force_seconds
        order = StopOrder(ExitKind.KILLED, failure.message, deadline_at, failure)
        stop_allocation(draft, allocation, order, now)
        return draft.change
    for agent_id in unended_agents(allocation):
        if _is_lost(records, agent_id) and _starts_again(records, allocation):
            continue
        message = f"did not report its end within {rules.force_seconds:g} s after it had to"
        report = ExitReport(
            agent_id,
            ExitKind.RUNNER_LOST,
            message,
            failed_at=now,
            ended_at=now,
            has_not_begun=agent_id in unbegun_agents,
        )
        draft.add(member_exited(draft, allocation_id, report, rules, now))
    return draft.change


def _is_lost(records: Records, agent_id: str) -> bool:
    agent = records.find(Agent, agent_id)
    return agent is not None and agent.state is AgentState.LOST


def _starts_again(records: Records, allocation: Allocation) -> bool:
    """Returns whether another attempt may follow the end of this one."""
    experiment = get(records, Experiment, allocation.experiment_id)
    return experiment.state is not State.STOPPING and get(records, Trial, allocation.trial_id).closing is None


def _late_start(allocation: Allocation, accepted_agents: frozenset[str], rules: Rules, now: float) -> ExitReport:
    agents = [member.agent_id for member in allocation.members]
    if allocation.timeline.accepted_at:
        seconds = rules.rendezvous_seconds + rules.start_seconds
        message = f"no ranks came up within {seconds:g} s after all agents had accepted ({', '.join(agents)})"
        return ExitReport(agents[0], ExitKind.RENDEZVOUS, message, failed_at=now, ended_at=now)
    missing = [agent_id for agent_id in agents if agent_id not in accepted_agents] or agents
    message = f"not accepted by {', '.join(missing)} within {rules.accept_seconds:g} s"
    return ExitReport(missing[0], ExitKind.START_FAILED, message, failed_at=now, ended_at=now, is_agent_at_fault=True)
