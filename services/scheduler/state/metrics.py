"""Defines the scheduler's own metrics. Owns names and buckets; the module that does the work updates them."""

from __future__ import annotations

from collections import Counter as CountOf
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import StrEnum

from prometheus_client import Counter, Gauge, Histogram

from gangline.domain.allocation import Allocation, Request, Timeline
from gangline.domain.resource import Agent, Slot
from gangline.domain.settled.record import DEFAULT_POOL
from gangline.domain.state import AgentState, Availability, ExitKind, ReasonCode, State
from services.scheduler.state.records import SchedulerState

IS_LEADER = Gauge("gangline_scheduler_is_leader", "1 while this scheduler leads")
EPOCH = Gauge("gangline_scheduler_epoch", "The fencing token of the present term, 0 as a standby")
QUEUE_LENGTH = Gauge("gangline_scheduler_queue_length", "Requests that wait for slots", ["pool"])
PENDING_BY_REASON = Gauge("gangline_scheduler_pending", "Requests that wait, by reason", ["reason"])
ALLOCATIONS = Gauge("gangline_scheduler_allocations", "Live allocations", ["state"])
AGENTS = Gauge("gangline_scheduler_agents", "Known agents", ["state"])
SLOTS = Gauge("gangline_scheduler_slots", "Slots of all known agents", ["state"])
SLOT_SECONDS = Counter(
    "gangline_scheduler_slot_seconds_total",
    "Slots held by allocations, times the seconds for which this scheduler led",
    ["pool", "owner"],
)
CYCLE_SECONDS = Histogram(
    "gangline_scheduler_cycle_seconds",
    "Time of one phase of the scheduling cycle",
    ["phase"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
START_SECONDS = Histogram(
    "gangline_scheduler_start_seconds",
    "Time of one phase of an allocation's start",
    ["phase"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
IMPLAUSIBLE_VALUES = Counter(
    "gangline_scheduler_implausible_values_total", "Reported times and counts that were replaced", ["kind"]
)
EXITS = Counter("gangline_scheduler_member_exits_total", "Members of allocations that ended", ["kind"])
# A rate shows the first event of a label only if its counter was 0 before.
for _kind in ExitKind:
    EXITS.labels(_kind.lower())
for _field in fields(Timeline)[1:]:
    START_SECONDS.labels(_field.name.removesuffix("_at"))
FENCED_REPORTS = Counter("gangline_scheduler_fenced_reports_total", "Reports and renewals of attempts that are over")
HELD_MEMBERS = Gauge(
    "gangline_scheduler_held_members",
    "Members on lost agents whose runners may still train, so they are not given up yet",
)
COMMITTED_OPERATIONS = Histogram(
    "gangline_scheduler_commit_operations",
    "Operations in one transaction",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
)


def count_state(state: SchedulerState) -> None:
    """Sets the gauges that follow from the records alone. A label that may have a value has 0 without one, so a panel
    shows an empty queue as 0 and not as a lack of data."""
    pools = {agent.pool for agent in state.all_of(Agent)} or {DEFAULT_POOL}
    _set(QUEUE_LENGTH, CountOf(request.pool for request in state.all_of(Request)), pools)
    states = CountOf(allocation.state.value.lower() for allocation in state.all_of(Allocation))
    _set(ALLOCATIONS, states, _names(LIVE_STATES))
    _set(AGENTS, CountOf(agent.state.value.lower() for agent in state.all_of(Agent)), _names(AgentState))
    _set(SLOTS, _count_slots(state))


def count_reasons(count_by_code: Mapping[ReasonCode, int]) -> None:
    _set(PENDING_BY_REASON, {code.value.lower(): count for code, count in count_by_code.items()}, _names(_PENDING))


def forget_state() -> None:
    """Removes the values of a term that is over. The next leader reports its own."""
    for gauge in (QUEUE_LENGTH, PENDING_BY_REASON, ALLOCATIONS, AGENTS, SLOTS):
        gauge.clear()


# The state of a live allocation, and the reasons for which a request waits.
LIVE_STATES = (State.STARTING, State.RUNNING, State.STOPPING)
_PENDING = [code for code in ReasonCode if code is not ReasonCode.RUNS_SHRUNK]


def _names(members: Iterable[StrEnum]) -> list[str]:
    return [member.value.lower() for member in members]


def _count_slots(state: SchedulerState) -> dict[str, int]:
    """Counts slots by state. Every slot is in exactly one state."""
    used = {
        slot_id
        for allocation in state.all_of(Allocation)
        for member in allocation.members
        for slot_id in member.slot_ids
    }
    counts = {"used": 0, "free": 0, "disabled": 0, "unhealthy": 0, "lost": 0}
    for agent in state.all_of(Agent):
        for slot in agent.slots:
            counts["used" if slot.id in used else _spare(agent, slot)] += 1
    return counts


def _spare(agent: Agent, slot: Slot) -> str:
    """Returns the state of a slot that no allocation holds. disabled: an operator has disabled or drained it or its
    agent.
    """
    if agent.state is AgentState.LOST:
        return "lost"
    if not slot.is_healthy:
        return "unhealthy"
    return "free" if slot.is_open and agent.availability is Availability.ENABLED else "disabled"


def _set(gauge: Gauge, value_by_label: Mapping[str, int], zeros: Iterable[str] = ()) -> None:
    """Replaces all values of a gauge, so that labels without a value are no longer reported. zeros: labels that are
    always reported."""
    gauge.clear()
    for label, value in {**dict.fromkeys(zeros, 0), **value_by_label}.items():
        gauge.labels(label).set(value)
