"""One term of a leader: all state in memory that exists only while this process leads.

Owns the wiring of store, loop, sessions, rendezvous and intake, and the first writes of a term (cluster, admin user). A
term that is over is discarded whole; the next one starts from the records in etcd.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, replace

import structlog

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.resource import Agent, Cluster
from gangline.domain.state import AgentState
from gangline.errors import unavailable
from gangline.v1 import runner_pb2
from services.common.access.security import as_password, hash_token
from services.common.concurrency import cancel
from services.common.election import Deposed, Leadership
from services.common.timer_grid import seconds_until_due
from services.scheduler.agents.agent_session import Sessions
from services.scheduler.agents.dispatch import Dispatch
from services.scheduler.agents.expiry import Expiry
from services.scheduler.agents.intake import Intake
from services.scheduler.agents.lease_table import AttemptLeases, Leases, committee_of
from services.scheduler.agents.runner_spec import SpecSource
from services.scheduler.leader.continuation import Continuation, warm_up_for
from services.scheduler.leader.cycle import CycleContext, SchedulingCycle
from services.scheduler.leader.planner_snapshot import all_pools
from services.scheduler.leader.slot_meter import SlotMeter
from services.scheduler.leader.trace_order import TraceOrders
from services.scheduler.placement import PoolConfig
from services.scheduler.rendezvous.coordinator import RendezvousCoordinator
from services.scheduler.state import metrics
from services.scheduler.state.directory import Directory
from services.scheduler.state.records import SINGLETON, Draft, Records, SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.run_history import RunHistory, newest_ended
from services.scheduler.state.settled import settled_of
from services.scheduler.state.state_store import STALLED_SECONDS, Store
from services.scheduler.transition.account.user_change import found_users

_log = structlog.get_logger(__name__)

SCHEMA_VERSION = 1
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class TermContext:
    """Holds the settings that are the same for every term of this process."""

    own_address: str
    cluster_token: str
    admin_token: str | None
    storage_url: str
    storage_wait_seconds: float
    network_interface: str  # empty leaves the choice to the gangs
    pools: tuple[PoolConfig, ...]
    rules: Rules
    agent_lease_seconds: float
    agent_grace_seconds: float
    agent_silence_seconds: float
    directory: Directory


class Term:
    """state: what etcd held when the term began. Used by the services between `open` and the end of `run`."""

    def __init__(self, leadership: Leadership, state: SchedulerState, context: TermContext) -> None:
        now = time.time()
        self.context = context
        self.leadership = leadership
        self.sessions = Sessions()
        self.store = Store(leadership, state, self._on_committed, self._on_stalled)
        self.intake = Intake(
            self.store, self.sessions, context.rules, context.storage_url, context.directory.has_gateway_since
        )
        self.traces = TraceOrders(context.storage_url)
        self.meter = SlotMeter(state, time.monotonic())
        self.history = RunHistory()
        self.history.learn(state, newest_ended(state.all_of(Trial)))
        self.coordinator = RendezvousCoordinator(context.rules.rendezvous_seconds, context.network_interface or None)
        alive = (agent.id for agent in state.all_of(Agent) if agent.state is AgentState.ALIVE)
        self.leases = Leases(alive, context.agent_lease_seconds, context.agent_grace_seconds, time.monotonic())
        cluster = state.find(Cluster, SINGLETON) or Cluster(SCHEMA_VERSION, uuid.uuid4().hex, now)
        self._cluster = cluster
        self._committee: tuple[Agent, ...] | None = None
        began_at = time.monotonic()
        self.attempts = AttemptLeases(
            context.agent_lease_seconds,
            context.agent_silence_seconds,
            [agent.id for agent in self.committee],
            began_at,
        )
        self.dispatch = Dispatch(
            self.store,
            self.sessions,
            self._spec_source(),
            context.rules,
            on_exit=self._exit_later,
            on_start=self._on_start,
        )
        patient_until = now + context.agent_lease_seconds + context.agent_grace_seconds
        self.expiry = Expiry(
            leadership=leadership,
            store=self.store,
            sessions=self.sessions,
            leases=self.leases,
            attempts=self.attempts,
            intake=self.intake,
            dispatch=self.dispatch,
            rules=context.rules,
            patient_until=patient_until if state.count(Allocation) else now,
        )
        cycle_context = CycleContext(
            leadership=leadership,
            store=self.store,
            sessions=self.sessions,
            intake=self.intake,
            history=self.history,
            pools=context.pools,
            rules=context.rules,
            preemption_grace=_preemption_grace,
            has_gateway=lambda: bool(context.directory.addresses_of("gateway")),
            network_interface=context.network_interface or None,
        )
        self.loop = SchedulingCycle(cycle_context)
        self.continuation = Continuation(self.store, context.rules, self.spawn)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> SchedulerState:
        return self.store.state

    @property
    def committee(self) -> tuple[Agent, ...]:
        """Returns the agents that confirm to runners which side of a network is cut off. Cached until an agent's record
        changes, because every renewal of every runner reads it.
        """
        if self._committee is None:
            self._committee = committee_of(self.state.all_of(Agent))
        return self._committee

    @property
    def pools(self) -> tuple[PoolConfig, ...]:
        """Returns the configured pools and those that agents name."""
        return all_pools(self.context.pools, self.state.all_of(Agent))

    async def run(self, on_open: asyncio.Event) -> None:
        """Runs the term until leadership is lost or the caller cancels. on_open: set when the term can serve calls."""
        writing = asyncio.create_task(self.store.run(), name="store")
        lost = asyncio.create_task(self.leadership.lost.wait(), name="leadership lost")
        tasks: set[asyncio.Task[object]] = {writing, lost}
        try:
            await warm_up_for(self.state)
            await self._wait_or_raise(asyncio.create_task(self.store.commit(self._found)), tasks)
            tasks.add(asyncio.create_task(self._run_cycles(), name="loop"))
            tasks.add(asyncio.create_task(self.continuation.run(), name="continuation"))
            tasks.add(asyncio.create_task(self._tick(), name="slot meter and stalls"))
            tasks.add(asyncio.create_task(self._follow_gateways(), name="gateways"))
            self._describe_start()
            # No runner could be answered before now, however long the start of the term took.
            self.attempts.forgive(time.monotonic())
            on_open.set()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except Deposed as error:
            _log.warning("deposed", epoch=self.store.epoch, reason=str(error))
        finally:
            self._close()
            await cancel(*tasks, *self._tasks)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Runs a coroutine of this term in the background; its exceptions are logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_spawned_end)

    async def _wait_or_raise(self, first: asyncio.Task[StateChange], others: set[asyncio.Task[object]]) -> None:
        """Waits for the first write. Raises where the store or the leadership ends before it."""
        await asyncio.wait({first, *others}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            first.cancel()
            raise Deposed("leadership was lost before its first write")
        first.result()

    def _found(self, records: Records) -> StateChange:
        """Returns the records that every cluster needs and this one lacks, and the administrator as the settings name
        it."""
        draft = Draft(records)
        if records.find(Cluster, SINGLETON) is None:
            draft.put(self._cluster)
        for default in (DEFAULT_WORKSPACE, DEFAULT_PROJECT):
            if records.find(type(default), default.id) is None:
                draft.put(replace(default, created_at=time.time()))
        token = self.context.admin_token
        hashes = ("", "") if token is None else (hash_token(token), hash_token(as_password(token)))
        for record in found_users(records, *hashes, time.time()).puts:
            draft.put(record)
        return draft.change

    def _spec_source(self) -> SpecSource:
        return SpecSource(
            cluster_id=self._cluster.id,
            cluster_token=self.context.cluster_token,
            storage_url=self.context.storage_url,
            own_address=self.context.own_address,
            rendezvous_seconds=self.context.rules.rendezvous_seconds,
            network_interface=self.context.network_interface,
            directory=self.context.directory,
            lease_seconds=self.context.agent_lease_seconds,
            storage_wait_seconds=self.context.storage_wait_seconds,
        )

    def _on_committed(self, change: StateChange) -> None:
        if change.touches(Agent):
            self._committee = None
        with metrics.CYCLE_SECONDS.labels("dispatch").time():
            self.dispatch.on_committed(change)
        for record_type, allocation_id in change.deletes:
            if record_type is Allocation:
                self.coordinator.close(str(allocation_id))
                self.attempts.forget(str(allocation_id))
        self.meter.on_committed(change, time.monotonic())
        self.intake.on_committed(change)
        self.traces.on_committed(change)
        self.history.learn(self.state, change.all_of(Trial))
        self.loop.on_committed(change)
        self.continuation.on_committed(change)

    def _on_stalled(self) -> None:
        """Renews all leases: agents' messages have waited behind a write, heartbeats among them."""
        self.leases.forgive(time.monotonic())
        self.attempts.forgive(time.monotonic())

    def _on_start(self, allocation_id: str, spec: runner_pb2.RunnerSpec) -> None:
        """Renews the member's lease, because the spec grants the first one."""
        committee = [witness.agent_id for witness in spec.committee]
        self.attempts.renew(allocation_id, spec.node_rank, committee, time.monotonic())

    async def _run_cycles(self) -> None:
        """Ends everything that has expired, then runs a scheduling cycle, until it is cancelled. The cycle sees the
        changes of the first step.
        """
        while True:
            now = time.time()
            try:
                with metrics.CYCLE_SECONDS.labels("expire").time():
                    await self.expiry.expire(now)
                await self.loop.cycle(now)
            except Exception:  # noqa: BLE001 - a bug in one cycle must not end placement for good
                _log.exception("a scheduling cycle failed")
                self.loop.retry_soon()
            await self.loop.wait(self.expiry.seconds_to_next())

    async def _follow_gateways(self) -> None:
        """Tells the agents where the gateways are, and has the trials planned again that wait for one."""
        directory = self.context.directory
        while True:
            changed, addresses = directory.changed, directory.addresses_of("gateway")
            if addresses != self.sessions.gateways:
                self.sessions.tell_gateways(addresses)
                self.loop.wake()
            await changed.wait()

    async def _tick(self) -> None:
        """Counts the seconds of the slots, and detects pauses of this process. A process that was paused, or that the
        host did not schedule, has not read the heartbeats that arrived. Both share a timer, because each one wakes the
        process.
        """
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(seconds_until_due(_TICK_SECONDS, slept_at))
            now = time.monotonic()
            self.meter.count(now)
            # At most a tick of the pause was due to the sleep itself.
            if now - slept_at > STALLED_SECONDS:
                _log.warning("this scheduler stood still; all agents have a whole lease again", seconds=now - slept_at)
                self._on_stalled()

    def _exit_later(self, allocation_id: str, report: ExitReport) -> None:
        """Records an exit in a later commit, because a commit is being applied right now."""
        self.spawn(self.intake.exit(allocation_id, report))

    def _on_spawned_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work of the term failed", exc_info=task.exception())

    def _describe_start(self) -> None:
        metrics.IS_LEADER.set(1)
        metrics.EPOCH.set(self.store.epoch)
        counts = {
            record_type.__name__.lower() + "s": self.state.count(record_type)
            for record_type in (Agent, Experiment, Allocation)
        }
        _log.info("leading", epoch=self.store.epoch, revision=self.state.revision, **counts)

    def _close(self) -> None:
        metrics.IS_LEADER.set(0)
        metrics.EPOCH.set(0)
        self.loop.close()
        error = unavailable("scheduler.deposed", "this scheduler has stopped leading; connect to the next leader")
        self.sessions.close_all(error)
        self.coordinator.close_all(error)


def _preemption_grace(state: SchedulerState, allocation_id: str) -> float:
    allocation = get(state, Allocation, allocation_id)
    experiment = get(state, Experiment, allocation.experiment_id)
    return settled_of(experiment.config_json).preemption_timeout
