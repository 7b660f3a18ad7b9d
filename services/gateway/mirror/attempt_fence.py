"""PURE: which attempts of a trial may still deliver, and which records of a superseded one are left out.

A runner delivers until its attempt ends, and for RUNNER_LINGER_SECONDS after it. Records that it could not deliver by
then wait in its spool. The drainer delivers them under the token of its host's agent, however late. So the token of an
ended attempt, which a trial may have read, writes nothing new.

The mirror may lag behind etcd. An attempt that it does not know yet counts as live, because the leader has issued its
token.
"""

from __future__ import annotations

from gangline.domain.history import LogLine
from gangline.domain.id import describe_allocation, parse_allocation_id, parse_trial_id
from gangline.domain.state import AgentState
from services.common import keys
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.mirror.ingest_record import IngestRecord

# The last lines of an attempt explain why it ended, and its host's clock may be ahead of the leader's. A metric of that
# time would appear beside the same batch's metric of the next attempt.
LOG_LINGER_SECONDS = 60.0
# A runner ends within seconds of its ranks.
RUNNER_LINGER_SECONDS = 120.0
# Most difference between the clocks of the leader and of a gateway.
CLOCK_SECONDS = 300.0


def why_over(state: ClusterState, allocation_id: str) -> str:
    """Returns why this attempt must not train any more; "" while it is live or not known yet."""
    trial_id, attempt = parse_allocation_id(allocation_id)
    experiment_id, _ = parse_trial_id(trial_id)
    if state.is_removed(experiment_id):
        return f"experiment {experiment_id} is deleted"
    trial = state.trials.find(keys.trial(trial_id))
    if trial is None or trial.attempts < attempt or state.allocations.find(keys.allocation(allocation_id)) is not None:
        return ""
    if trial.attempts > attempt:
        return f"attempt {trial.attempts} of trial {trial_id} has taken the place of attempt {attempt}"
    return f"{describe_allocation(allocation_id)} has ended"


def may_deliver(state: ClusterState, allocation_id: str, ended_for: float, now: float) -> bool:
    """Returns whether the token of this attempt may still deliver. ended_for: seconds since the attempt has ended, as
    far as the gateway knows. now: Unix seconds, for attempts that ended before the gateway began.

    The token stays good while there is an agent of an earlier version, whose drainers have no token of their own.
    """
    trial = state.trials.find(keys.trial(parse_allocation_id(allocation_id)[0]))
    is_old = trial is not None and 0 < trial.ended_at < now - RUNNER_LINGER_SECONDS - CLOCK_SECONDS
    if not why_over(state, allocation_id) or (ended_for <= RUNNER_LINGER_SECONDS and not is_old):
        return True
    return any(agent.state is AgentState.ALIVE and not agent.drains for agent in state.agents.all())


def is_of_agent(state: ClusterState, allocation_id: str, agent_id: str) -> bool:
    """Returns whether an agent may deliver for this attempt: it was there, or the attempt is no more on record."""
    allocation = state.allocations.find(keys.allocation(allocation_id))
    return allocation is None or any(member.agent_id == agent_id for member in allocation.members)


def admitted(state: ClusterState, allocation_id: str, records: tuple[IngestRecord, ...]) -> tuple[IngestRecord, ...]:
    """Returns the records to store: all of them, unless a later attempt of the trial has begun or the experiment is
    deleted. Records that this attempt made after that begin would appear beside the later attempt's own records."""
    trial_id, attempt = parse_allocation_id(allocation_id)
    if state.is_removed(parse_trial_id(trial_id)[0]):
        return ()
    trial = state.trials.find(keys.trial(trial_id))
    if trial is None or trial.attempts <= attempt:
        return records
    begun_at = trial.timeline.placed_at or trial.timeline.queued_at
    return tuple(record for record in records if record.at <= begun_at + _linger_of(record))


def _linger_of(record: IngestRecord) -> float:
    return LOG_LINGER_SECONDS if isinstance(record.content, LogLine) else 0.0
