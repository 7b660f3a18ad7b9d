"""Defines the scheduler's own metrics. Owns names and buckets; the module that does the work updates them."""

from __future__ import annotations

from collections import Counter as CountOf
from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from gangline.domain.allocation import Allocation, Request
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import AgentState, Availability, ReasonCode
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
    """Sets the gauges that follow from the records alone."""
    _set(QUEUE_LENGTH, CountOf(request.pool for request in state.all_of(Request)))
    _set(ALLOCATIONS, CountOf(allocation.state.value.lower() for allocation in state.all_of(Allocation)))
    _set(AGENTS, CountOf(agent.state.value.lower() for agent in state.all_of(Agent)))
    _set(SLOTS, _count_slots(state))


def count_reasons(count_by_code: Mapping[ReasonCode, int]) -> None:
    _set(PENDING_BY_REASON, {code.value.lower(): count for code, count in count_by_code.items()})


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


def _set(gauge: Gauge, value_by_label: Mapping[str, int]) -> None:
    """Replaces all values of a gauge, so that labels without a value are no longer reported."""
    gauge.clear()
    for label, value in value_by_label.items():
        gauge.labels(label).set(value)
