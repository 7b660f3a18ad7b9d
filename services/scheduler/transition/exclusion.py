"""PURE: agents on which trials cannot start: those that one trial avoids for a while, and those that are quarantined.

An agent that fails a start for reasons outside of the trial is excluded for this trial for `exclusion_seconds`. Failed
starts of several trials, without a successful one between them, quarantine the agent for the same time. Both end early
when the agent is trusted again: its own check is good after it was bad, or an operator enables it.

Two agents that do not reach one another do not show which of them is the cause. One of them is excluded for
`PAIR_SECONDS`. An agent that then does not reach a third one either is the cause, and its earlier peer is readmitted.
The same holds for an agent that does not reach a registered gateway: it is excluded for `PAIR_SECONDS`, so other agents
are tried, and no count takes it out of use for other trials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gangline.domain.allocation import Allocation, Exclusion, Request
from gangline.domain.experiment import Trial
from gangline.domain.resource import Agent, FailedStart
from gangline.domain.state import ExitKind
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.state.rules import Rules

# Different trials whose failed starts quarantine an agent.
MAX_FAILED_STARTS = 3
# For an agent of a pair of which either may be the cause; the other one may be a gateway. It is short, because there
# may be no third agent.
PAIR_SECONDS = 60.0
# A readmission takes two operations, of the 128 that etcd allows; stopping work on an agent takes up to 96 in the same
# transaction.
MAX_READMITTED = 12


def blamed_agents(allocation: Allocation) -> dict[str, str]:
    """Returns the agents that could not start or hold their member, with the reason."""
    reports = [report for report in (*reversed(allocation.exits), allocation.failure) if report is not None]
    return {report.agent_id: report.message or str(report.kind) for report in reports if report.is_agent_at_fault}


def _failed_starts(allocation: Allocation) -> set[str]:
    """Returns the blamed agents, without those that only a rank blames: user code can print any error, and must not
    take an agent out of use for others."""
    reports = [report for report in (*allocation.exits, allocation.failure) if report is not None]
    return {report.agent_id for report in reports if report.is_agent_at_fault and report.rank is None}


def exclude(
    draft: Draft, trial: Trial, allocation: Allocation, rules: Rules, now: float, *, had_gateway: bool = False
) -> Trial:
    """Returns the trial with the exclusions that hold from now on; also records this failed start on each blamed agent.
    had_gateway: whether a gateway was registered for as long as the allocation lived."""
    blamed, failed_starts = blamed_agents(allocation), _failed_starts(allocation)
    kept = [exclusion for exclusion in trial.exclusions if holds(draft, exclusion, now)]
    new: list[Exclusion] = []
    short_until_at = now + min(PAIR_SECONDS, rules.exclusion_seconds)
    suspects, why = _network_suspects(allocation)
    culprit = suspects[0] if len(suspects) == 1 else _find_culprit(suspects, kept)
    if culprit:
        blamed.setdefault(culprit, why)
        failed_starts.add(culprit)
        kept = [exclusion for exclusion in kept if exclusion.peer_id != culprit]
    elif len(suspects) == 2:
        avoided = max(suspects, key=lambda agent_id: _num_failed_starts(draft, agent_id))
        [peer_id] = set(suspects) - {avoided}
        new.append(Exclusion(avoided, why, now, short_until_at, peer_id))
    if had_gateway:
        new += [
            Exclusion(report.agent_id, report.message, now, short_until_at)
            for report in allocation.exits
            if report.kind is ExitKind.NO_GATEWAY
        ]
    new += [Exclusion(agent_id, why, now, now + rules.exclusion_seconds) for agent_id, why in sorted(blamed.items())]
    for exclusion in new:
        if exclusion.agent_id in failed_starts:
            _note_failed_start(draft, trial.id, exclusion, rules)
    renewed = {exclusion.agent_id for exclusion in new}
    return replace(trial, exclusions=(*(each for each in kept if each.agent_id not in renewed), *new))


def _network_suspects(allocation: Allocation) -> tuple[tuple[str, ...], str]:
    """Returns the agents of which one has no working network, as few as any member names, and the member's message."""
    named = [report for report in allocation.exits if report.suspect_agent_ids]
    report = min(named, key=lambda report: (len(report.suspect_agent_ids), report.agent_id), default=None)
    members = {member.agent_id for member in allocation.members}
    if report is None or not members.issuperset(report.suspect_agent_ids) or len(report.suspect_agent_ids) > 2:
        return (), ""
    return report.suspect_agent_ids, report.message


def _find_culprit(suspects: Iterable[str], exclusions: Iterable[Exclusion]) -> str:
    """Returns the one of a pair that did not reach another agent before; empty if that is so of none, or of both."""
    pair = set(suspects)
    earlier = [{exclusion.agent_id, exclusion.peer_id} for exclusion in exclusions if exclusion.peer_id]
    repeated = {agent_id for other in earlier if other != pair for agent_id in pair & other}
    return repeated.pop() if len(repeated) == 1 else ""


def _num_failed_starts(records: Records, agent_id: str) -> int:
    agent = records.find(Agent, agent_id)
    return len(agent.failed_starts) if agent is not None else 0


def holds(records: Records, exclusion: Exclusion, now: float) -> bool:
    agent = records.find(Agent, exclusion.agent_id)
    is_trusted = agent is not None and agent.trusted_at >= exclusion.at
    return exclusion.until_at > now and not is_trusted


def start_succeeded(draft: Draft, agent_ids: Iterable[str]) -> None:
    """Clears the failed starts of agents on which ranks came up: those were not the agent's own fault, or the fault is
    gone."""
    for agent_id in agent_ids:
        agent = draft.find(Agent, agent_id)
        if agent is not None and agent.failed_starts:
            draft.put(replace(agent, failed_starts=()))


def is_avoided(records: Records, agent: Agent) -> bool:
    """Returns whether all trials avoid the agent, or one that waits does, or failed starts are on record against it."""
    if agent.failed_starts or agent.quarantine_reason:
        return True
    return any(
        exclusion.agent_id == agent.id for request in records.all_of(Request) for exclusion in request.exclusions
    )


def trusted_again(agent: Agent, now: float) -> Agent:
    return replace(agent, failed_starts=(), quarantined_until_at=0.0, quarantine_reason="", trusted_at=now)


def readmitted(records: Records, trial_id: str, now: float) -> StateChange:
    """Returns the change of a waiting trial whose exclusions that are over are removed."""
    draft = Draft(records)
    request = records.find(Request, trial_id)
    if request is not None:
        _readmit(draft, request, now)
    return draft.change


def readmit_on(draft: Draft, agent: Agent, now: float) -> None:
    """Does the same for the next waiting trials that avoid an agent which is trusted again."""
    if not agent.trusted_at:
        return
    behind = [
        request
        for request in draft.all_of(Request)
        if any(exclusion.agent_id == agent.id and agent.trusted_at >= exclusion.at for exclusion in request.exclusions)
    ]
    for request in behind[:MAX_READMITTED]:
        _readmit(draft, request, now)


def blocklist_of(trial: Trial) -> tuple[str, ...]:
    return tuple(sorted({*trial.excluded_agents, *(exclusion.agent_id for exclusion in trial.exclusions)}))


def _readmit(draft: Draft, request: Request, now: float) -> None:
    trial = draft.find(Trial, request.trial_id)
    if trial is None:
        return
    trial = replace(
        trial, exclusions=tuple(exclusion for exclusion in trial.exclusions if holds(draft, exclusion, now))
    )
    draft.put(trial)
    draft.put(replace(request, exclusions=trial.exclusions, blocklist=blocklist_of(trial)))


def _note_failed_start(draft: Draft, trial_id: str, exclusion: Exclusion, rules: Rules) -> None:
    agent = draft.find(Agent, exclusion.agent_id)
    if agent is None:
        return
    others = [start for start in agent.failed_starts if start.trial_id != trial_id]
    starts = (*others, FailedStart(trial_id, exclusion.at, exclusion.reason))[-MAX_FAILED_STARTS:]
    agent = replace(agent, failed_starts=starts)
    if len(starts) == MAX_FAILED_STARTS:
        trials = ", ".join(start.trial_id for start in starts)
        reason = f"{MAX_FAILED_STARTS} trials in a row could not start there ({trials}); last: {exclusion.reason}"
        until_at = exclusion.at + rules.exclusion_seconds
        agent = replace(agent, quarantine_reason=reason, quarantined_until_at=until_at)
    draft.put(agent)
