"""The scheduling cycle of the leader: snapshot, plan, commit; the store dispatches each commit.

The loop sleeps until an event wakes it (a submit, an exit, an agent) or the next deadline arrives; it never polls. It
decides nothing: plans are pure. The term runs the cycles, each after the pass that ends what has expired (expiry.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import structlog

from gangline.domain.allocation import Allocation, Reason, Request
from gangline.domain.experiment import Experiment
from gangline.domain.quota import Quota
from gangline.domain.resource import Agent
from gangline.domain.state import ExitKind
from gangline.domain.state import State as Stage
from services.common.election import Leadership
from services.scheduler.agents.agent_session import Sessions
from services.scheduler.agents.intake import Intake
from services.scheduler.leader.planner_snapshot import SnapshotMemory, take_snapshot
from services.scheduler.placement import Plan, PoolConfig, Snapshot, plan
from services.scheduler.placement.request.assignment import Assignment, Preemption
from services.scheduler.placement.request.snapshot_change import dump_change
from services.scheduler.state import metrics
from services.scheduler.state.hold import held_reason, is_held
from services.scheduler.state.records import SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.run_history import RunHistory
from services.scheduler.state.state_store import Store
from services.scheduler.transition.place import place
from services.scheduler.transition.size import grow
from services.scheduler.transition.stop import StopOrder, stop

_log = structlog.get_logger(__name__)

# Delay between a wake and its cycle, so that the changes of one burst are planned together.
DEBOUNCE_SECONDS = 0.002
LONGEST_DEBOUNCE_SECONDS = 0.1
_DEBOUNCE_PASSES = 3
# Delay before the next cycle for changes that cannot start anything (routine progress).
_LAZY_SECONDS = 0.1
COUNT_SECONDS = 0.5
# Greatest share of the loop's time for the gauges: with a long queue, counting every request is slow.
_COUNT_SHARE = 0.02
_RETRY_SECONDS = 0.5
# Least time between two plans where only the time has changed.
_LEAST_LOOK_SECONDS = 1.0


@contextlib.contextmanager
def _timed(phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    metrics.CYCLE_SECONDS.labels(phase).observe(time.perf_counter() - started)


@dataclass(frozen=True)
class CycleContext:
    """Holds the parts of a term that the loop uses."""

    leadership: Leadership
    store: Store
    sessions: Sessions
    intake: Intake
    history: RunHistory
    pools: tuple[PoolConfig, ...]
    rules: Rules
    preemption_grace: Callable[[SchedulerState, str], float]
    has_gateway: Callable[[], bool]
    network_interface: str | None = None


class SchedulingCycle:
    def __init__(self, context: CycleContext) -> None:
        self._context = context
        self._state = context.store.state
        self._wake = asyncio.Event()
        self._plan = Plan((), (), {})
        self._planned_revision = -1
        self._memory = SnapshotMemory()
        self._counting: asyncio.TimerHandle | None = None
        self._count_pause_seconds = COUNT_SECONDS
        self._waking: asyncio.TimerHandle | None = None
        self._pass_seconds = 0.0
        # Invariant: as of the last plan. Released slots wake the loop at once, and the next plan replaces the set.
        self._full_pools: frozenset[str] = frozenset()

    def wake(self) -> None:
        """Wakes the loop after a change that a plan may depend on."""
        self._wake.set()

    def on_committed(self, change: StateChange) -> None:
        if is_urgent(change, self._full_pools, self._memory.knows):
            self.wake()
        elif change.touches(Request, Allocation, Experiment) and self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(_LAZY_SECONDS, self._wake_lazily)

    def _wake_lazily(self) -> None:
        self._waking = None
        self.wake()

    async def cycle(self, now: float) -> None:
        """Runs one pass. Each step sees the changes of the step before it. now: Unix seconds."""
        started = time.perf_counter()
        if not self._state.count(Request) and not any(
            allocation.full_slots for allocation in self._state.all_of(Allocation)
        ):
            self._plan, self._planned_revision = Plan((), (), {}), self._state.revision
            self._full_pools = frozenset()
            self._count()
            return
        # 1. A frozen picture of agents, requests and running work.
        with _timed("snapshot"):
            snapshot = self.take_snapshot(now)
        # 2. The decision.
        with _timed("plan"):
            self._plan, self._planned_revision = plan(snapshot, now), snapshot.revision
        self._full_pools = full_pools(snapshot, self._plan)
        self._pass_seconds = time.perf_counter() - started
        # 3. Each assignment is checked again and written; the store dispatches what etcd accepted.
        if self._context.leadership.is_fresh:
            with _timed("commit"):
                await self._commit(self._plan, now)
        else:
            self.retry_soon()
        self._count()

    def pending(self) -> list[tuple[Request, Reason]]:
        """Returns every waiting request with its present reason, pool by pool in the order in which the planner
        considers them.
        """
        if self._planned_revision != self._state.revision:
            # This plan is only shown, not committed: the loop is about to compute the same one.
            now = time.time()
            self._plan, self._planned_revision = plan(self.take_snapshot(now), now), self._state.revision
        # `reasons` omits the requests that the plan assigns: they no longer wait.
        return [(get(self._state, Request, trial_id), self._reason(trial_id)) for trial_id in self._plan.reasons]

    def _reason(self, trial_id: str) -> Reason:
        """Returns the reason with the changes that would start the request, and the recorded cause of a pause."""
        changes = self._plan.changes.get(trial_id, ())
        dumped = json.dumps([dump_change(change) for change in changes])
        reason = replace(self._plan.reasons[trial_id], changes_json=dumped)
        request = get(self._state, Request, trial_id)
        experiment = get(self._state, Experiment, request.experiment_id)
        return held_reason(experiment, reason, changes) if is_held(experiment) else reason

    def take_snapshot(self, now: float) -> Snapshot:
        """Takes the snapshot that the planner would use now."""
        context = self._context
        problems = {agent.id: context.sessions.problem_of(agent.id) for agent in self._state.all_of(Agent)}
        return take_snapshot(
            self._state,
            context.pools,
            problems,
            context.intake.progress_by_trial,
            now=now,
            memory=self._memory,
            typical_run_seconds=context.history.typical_run_seconds,
            has_gateway=context.has_gateway(),
            network_interface=context.network_interface,
        )

    async def _commit(self, decided: Plan, now: float) -> None:
        placing = [self._place(assignment, now) for assignment in decided.assignments]
        changes = await asyncio.gather(*placing)
        if not all(changes):
            # The state moved between plan and commit.
            self.retry_soon()
        await asyncio.gather(*(self._preempt(preemption, now) for preemption in decided.preemptions))

    async def _place(self, assignment: Assignment, now: float) -> StateChange:
        context = self._context
        change = await context.store.commit(
            lambda records: place(records, assignment, epoch=context.store.epoch, rules=context.rules, now=now)
        )
        for allocation in change.all_of(Allocation):
            agents = {member.agent_id: len(member.slot_ids) for member in allocation.members}
            _log.info("placed", allocation_id=allocation.id, slots_by_agent=agents)
        return change

    async def _preempt(self, preemption: Preemption, now: float) -> None:
        context = self._context
        if preemption.is_growth:
            await context.store.commit(lambda records: grow(records, preemption.allocation_id, context.rules, now))
            return
        grace_seconds = context.preemption_grace(self._state, preemption.allocation_id)
        deadline_at = now + grace_seconds + context.rules.force_seconds
        order = StopOrder(ExitKind.PREEMPTED, f"makes room for trial {preemption.for_trial_id}", deadline_at)
        await context.store.commit(lambda records: stop(records, preemption.allocation_id, order, now))

    async def wait(self, longest_seconds: float | None) -> None:
        """Waits for the next wake or the next time to plan. The pause after a wake, in which a burst arrives, is longer
        than the last pass up to its commit. So planning takes a quarter of the time at most, and with a long queue less
        than half. longest_seconds: None for no limit.
        """
        waits = [longest_seconds]
        if self._plan.look_at is not None:
            waits.append(max(_LEAST_LOOK_SECONDS, self._plan.look_at - time.time()))
        timeout = min((wait for wait in waits if wait is not None), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
            pause = max(DEBOUNCE_SECONDS, self._pass_seconds * _DEBOUNCE_PASSES)
            await asyncio.sleep(min(pause, LONGEST_DEBOUNCE_SECONDS))
        self._wake.clear()

    def retry_soon(self) -> None:
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.wake)

    def _count(self) -> None:
        """Schedules an update of the gauges, at most once in COUNT_SECONDS, because it reads every slot and request."""
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(self._count_pause_seconds, self._count_now)

    def close(self) -> None:
        """Ends the updates of the gauges at the end of the term."""
        if self._counting is not None:
            self._counting.cancel()
        metrics.forget_state()

    def _count_now(self) -> None:
        started = time.perf_counter()
        self._counting = None
        metrics.count_state(self._state)
        reasons = Counter(reason.code for reason in self._plan.reasons.values())
        metrics.count_reasons(reasons)
        self._count_pause_seconds = max(COUNT_SECONDS, (time.perf_counter() - started) / _COUNT_SHARE)


def full_pools(snapshot: Snapshot, decided: Plan) -> frozenset[str]:
    """Returns the pools in which no slot is free once the plan is committed."""
    taken = Counter[str]()
    for assignment in decided.assignments:
        taken.update(assignment.slots_by_agent)
    open_pools = {agent.pool for agent in snapshot.agents if agent.is_usable and agent.free > taken[agent.id]}
    return snapshot.pool_names - open_pools


def is_urgent(change: StateChange, full: Collection[str], knows: Callable[[int], bool]) -> bool:
    """Returns whether the change may let a trial start, or brings a deadline nearer: a request, an agent, slots that
    are given back, a requested end, an experiment that is paused or activated again.

    A request in a full pool can only start after other work has stopped, which takes seconds. So it is not urgent.
    full: these pools. knows: whether the planner has seen this experiment; a new one counts by its requests alone.
    """
    calm = (Stage.STARTING, Stage.RUNNING)
    return (
        change.touches(Agent, Quota)
        or any(not request.slots or request.pool not in full for request in change.all_of(Request))
        or any(record_type is Allocation for record_type, _ in change.deletes)
        or any(allocation.state not in calm for allocation in change.all_of(Allocation))
        or any(
            experiment.state not in (*calm, Stage.TERMINAL) and knows(experiment.id)
            for experiment in change.all_of(Experiment)
        )
    )
