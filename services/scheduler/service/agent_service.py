"""AgentService: the streams that agents hold to the leader.

A hello is registered, compared with the records, and answered with whatever sets the difference right; from then on
statuses come in and the dispatcher's commands go out. A stream that ends leaves the agent its lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.resource import Agent, Slot, UndeliveredRecords
from gangline.domain.state import State
from gangline.errors import ErrorKind, GanglineError, conflict, invalid
from gangline.printable import find_unprintable
from gangline.protocol import wire
from gangline.v1 import agent_pb2, agent_pb2_grpc, runner_pb2
from services.scheduler.agents.agent_session import AgentSession
from services.scheduler.agents.reconcile import AgentDifference, Reported, compare
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.term import Term
from services.scheduler.service.access import require_agent
from services.scheduler.transition.availability import registered, slots_changed, unended_on
from services.scheduler.transition.exit import unended_agents

_log = structlog.get_logger(__name__)

Requests = AsyncIterator[agent_pb2.ConnectRequest]

# An agent that asks for a newer leader than it knows is answered at the latest after this time.
FIND_SECONDS = 20.0
# Allocations of one agent whose statuses are being written at the same time.
MAX_STATUSES = 256


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    def __init__(self, leader_status: LeaderStatus) -> None:
        self._leader_status = leader_status

    async def Connect(  # noqa: N802 - grpc's name
        self, request_iterator: Requests, _context: Any
    ) -> AsyncIterator[agent_pb2.ConnectResponse]:
        require_agent()
        term = await self._leader_status.reach()
        greeting = await _read_greeting(request_iterator)
        greeted_at, hello = time.time(), greeting.hello
        require_agent(hello.agent.id)
        agent = wire.from_proto(Agent, _with_state(hello.agent))
        session = _admit(term, agent, asks_before_commands=hello.asks_before_commands)
        session.clock.heard(greeting.sent_at, greeted_at)
        rules = term.context.rules
        # Before it is on record: an agent that is ALIVE there has a lease that can run out.
        term.leases.renew(agent.id, time.monotonic())
        await term.store.commit(lambda records: registered(records, agent, rules, time.time()))
        # From here on it may be told to stop what it has.
        session.known |= {status.allocation_id for status in hello.allocations}
        for status in hello.allocations:
            term.sessions.unbegun.reported(agent.id, status.allocation_id)
        session.send(_welcome(term))
        term.sessions.add(session)
        term.leases.renew(agent.id, time.monotonic())
        _log.info("agent connected", agent_id=agent.id, slots=len(agent.slots), allocations=len(hello.allocations))
        reading = asyncio.create_task(_serve(term, session, hello, request_iterator), name=f"agent {agent.id}")
        try:
            async for response in session.outgoing():
                yield response
        finally:
            reading.cancel()
            if term.sessions.remove(session):
                _log.info("agent disconnected", agent_id=agent.id)
                term.loop.wake()
            await asyncio.gather(reading, return_exceptions=True)

    async def Heartbeat(  # noqa: N802 - grpc's name
        self, request_iterator: AsyncIterator[agent_pb2.HeartbeatRequest], _context: Any
    ) -> agent_pb2.HeartbeatResponse:
        """Renews the lease of an agent that is connected. The stream alone decides whether it is."""
        require_agent()
        async for request in request_iterator:
            require_agent(request.agent_id)
            term = self._leader_status.require()
            if request.epoch == term.store.epoch and term.sessions.find(request.agent_id) is not None:
                term.leases.renew(request.agent_id, time.monotonic())
        return agent_pb2.HeartbeatResponse()

    async def FindLeader(  # noqa: N802 - grpc's name
        self, request: agent_pb2.FindLeaderRequest, _context: Any
    ) -> agent_pb2.FindLeaderResponse:
        require_agent()
        known_addresses = request.scheduler_addresses
        leader = await self._leader_status.find_leader(request.epoch, known_addresses, FIND_SECONDS)
        return agent_pb2.FindLeaderResponse(
            epoch=leader.epoch,
            leader_address=leader.address,
            scheduler_addresses=self._leader_status.scheduler_addresses,
        )


async def _read_greeting(requests: Requests) -> agent_pb2.ConnectRequest:
    first = await anext(aiter(requests), None)
    if first is None or not first.HasField("hello") or not first.hello.agent.id:
        raise invalid("agent.no_hello", "an agent's stream starts with its hello, which names the agent")
    letter = next(filter(None, map(find_unprintable, _names_of(first.hello.agent))), None)
    if letter is not None:
        raise invalid(
            "agent.name", f"a name of this agent has the control character {letter}; change its id, pool or labels"
        )
    return first


def _names_of(agent: Any) -> list[str]:
    """Returns the agent's names, which an operator has chosen."""
    return [agent.id, agent.pool, *agent.labels, *agent.labels.values()]


def _with_state(agent: Any) -> Any:
    """Fills in the state, which an agent does not send because the scheduler keeps it."""
    filled = type(agent)()
    filled.CopyFrom(agent)
    filled.state = 1
    return filled


def _admit(term: Term, agent: Agent, *, asks_before_commands: bool) -> AgentSession:
    """Raises GanglineError `agent.id_in_use` when another host's agent holds a stream under this id."""
    older = term.sessions.find(agent.id)
    if older is not None and older.host_id != agent.host_id:
        raise conflict(
            "agent.id_in_use", f"an agent {agent.id!r} of another host is connected; give each agent its own --id"
        )
    return AgentSession(agent.id, agent.host_id, asks_before_commands=asks_before_commands)


def _welcome(term: Term) -> agent_pb2.ConnectResponse:
    lease_seconds = term.leases.lease_seconds
    return agent_pb2.ConnectResponse(
        welcome=agent_pb2.AgentWelcome(
            epoch=term.store.epoch,
            heartbeat_seconds=lease_seconds / 5,
            lease_seconds=lease_seconds,
            answers_heartbeats=True,
        )
    )


async def _serve(term: Term, session: AgentSession, hello: agent_pb2.AgentHello, requests: Requests) -> None:
    """Reads until the agent's side of the stream ends; then, or on an error, the session is closed."""
    try:
        await _reconcile(term, session, hello)
        async with asyncio.TaskGroup() as group:
            statuses = Statuses(group, lambda status: _on_status(term, session, status))
            async for request in requests:
                term.leases.renew(session.agent_id, time.monotonic())
                session.clock.heard(request.sent_at, time.time())
                if request.HasField("status"):
                    term.sessions.unbegun.reported(session.agent_id, request.status.allocation_id)
                    await statuses.take(request.status)
                elif request.HasField("slots"):
                    await statuses.wait_taken()
                    await _on_slots(term, session, request.slots)
                elif request.HasField("heartbeat"):
                    term.sessions.unbegun.asked(session.agent_id)
                    session.send(agent_pb2.ConnectResponse(heartbeat=agent_pb2.HeartbeatAnswer()))
    except asyncio.CancelledError:
        raise
    except Exception:  # noqa: BLE001 - the agent comes back with a hello, which sets things right
        _log.exception("an agent's stream failed", agent_id=session.agent_id)
    finally:
        session.close()


class Statuses:
    """Applies the statuses of one stream. Statuses of one allocation are applied one after another, in order. Statuses
    of several allocations are applied concurrently, so that jobs that end together are written in one transaction.
    """

    def __init__(
        self, group: asyncio.TaskGroup, take: Callable[[agent_pb2.AllocationStatus], Coroutine[Any, Any, None]]
    ) -> None:
        self._group = group
        self._take = take
        self._last_by_allocation: dict[str, asyncio.Task[None]] = {}

    async def take(self, status: agent_pb2.AllocationStatus) -> None:
        """Returns before it is on record. Waits while MAX_STATUSES are not, so that memory stays bounded."""
        while len(self._last_by_allocation) >= MAX_STATUSES:
            await asyncio.wait(self._last_by_allocation.values(), return_when=asyncio.FIRST_COMPLETED)
        allocation_id = status.allocation_id
        task = self._group.create_task(self._take_after(self._last_by_allocation.get(allocation_id), status))
        self._last_by_allocation[allocation_id] = task
        task.add_done_callback(lambda done: self._on_done(allocation_id, done))

    async def wait_taken(self) -> None:
        """Returns once every status so far is on record."""
        while self._last_by_allocation:
            await asyncio.wait(self._last_by_allocation.values())

    async def _take_after(self, previous: asyncio.Task[None] | None, status: agent_pb2.AllocationStatus) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        await self._take(status)

    def _on_done(self, allocation_id: str, task: asyncio.Task[None]) -> None:
        if self._last_by_allocation.get(allocation_id) is task:
            del self._last_by_allocation[allocation_id]


async def _reconcile(term: Term, session: AgentSession, hello: agent_pb2.AgentHello) -> None:
    """Corrects the differences between the agent's journal and the records."""
    journal = [_reported(session, status) for status in hello.allocations]
    expected = unended_on(term.state, session.agent_id)
    difference = compare(session.agent_id, journal, expected, time.time())
    # 1. What ended while no leader listened, with the reports that could not be delivered.
    for status in hello.allocations:
        await asyncio.gather(*_take_undelivered(term, session.agent_id, status))
    for allocation_id, report in (*difference.ended, *difference.vanished):
        await term.intake.exit(allocation_id, report)
    _settle_strangers(term, session, difference)
    # 2. What it has accepted; then what it should have and does not, and what it should stop.
    metrics_by_allocation = {status.allocation_id: status.metrics_address for status in hello.allocations}
    for entry in difference.present:
        await term.intake.accept(session, entry.allocation_id, entry.accepted_at)
        address = metrics_by_allocation[entry.allocation_id]
        await term.intake.metrics_served(entry.allocation_id, session.agent_id, address)
    for allocation in unended_on(term.state, session.agent_id):
        term.dispatch.sync(allocation)
    term.loop.wake()


def _settle_strangers(term: Term, session: AgentSession, difference: AgentDifference) -> None:
    for allocation_id in (*difference.forgettable, *(ended for ended, _ in difference.ended)):
        term.dispatch.forget(session, allocation_id)
    for allocation_id in difference.strangers:
        term.dispatch.end_stranger(session, allocation_id)


async def _on_slots(term: Term, session: AgentSession, message: agent_pb2.AgentSlots) -> None:
    """The health of a slot has changed, or a slot is gone, or other records wait on the agent's disk."""
    slots = [wire.from_proto(Slot, slot) for slot in message.slots]
    undelivered = [wire.from_proto(UndeliveredRecords, waiting) for waiting in message.undelivered]
    rules = term.context.rules
    change = await term.store.commit(
        lambda records: slots_changed(
            records, session.agent_id, slots, rules, time.time(), problem=message.problem, undelivered=undelivered
        )
    )
    if change:
        sick = {slot.id: slot.problem for slot in slots if not slot.is_healthy}
        problem = {"problem": message.problem} if message.problem else {}
        _log.info("slots changed", agent_id=session.agent_id, slots=len(slots), unhealthy=sick, **problem)


async def _on_status(term: Term, session: AgentSession, status: agent_pb2.AllocationStatus) -> None:
    entry = _reported(session, status)
    allocation = term.state.find(Allocation, entry.allocation_id)
    is_expected = allocation is not None and session.agent_id in unended_agents(allocation)
    if entry.exit is not None:
        # Asked for together, they are written together, in this order.
        works = _take_undelivered(term, session.agent_id, status)
        if is_expected:
            if any(report.HasField("running") for report in status.undelivered):
                # The end of a short command is the first that its agent says of it.
                works.insert(0, term.intake.accept(session, entry.allocation_id, entry.accepted_at))
            works.append(term.intake.exit(entry.allocation_id, entry.exit))
        await asyncio.gather(*works)
        term.dispatch.forget(session, entry.allocation_id)
        term.loop.wake()
    elif is_expected:
        session.known.add(entry.allocation_id)
        await term.intake.accept(session, entry.allocation_id, entry.accepted_at)
        await term.intake.metrics_served(entry.allocation_id, session.agent_id, status.metrics_address)
    elif entry.allocation_id not in session.strangers:
        term.dispatch.end_stranger(session, entry.allocation_id)


def _take_undelivered(
    term: Term, agent_id: str, status: agent_pb2.AllocationStatus
) -> list[Coroutine[None, None, None]]:
    """Takes the reports of this agent's runner, which ended before it could send them, oldest first."""
    allocation = term.state.find(Allocation, status.allocation_id)
    members = allocation.members if allocation else ()
    ranks = [member.node_rank for member in members if member.agent_id == agent_id]
    return [
        _take(term, status.allocation_id, ranks[0] if ranks else 0, report)
        for report in sorted(status.undelivered, key=lambda report: report.sequence)
    ]


async def _take(term: Term, allocation_id: str, node_rank: int, report: runner_pb2.TrialReport) -> None:
    """Drops a status that can never be accepted, as its runner would have done: otherwise the agent would send it again
    for ever.
    """
    try:
        await term.intake.report(allocation_id, node_rank, report)
    except GanglineError as error:
        if error.kind is not ErrorKind.INVALID:
            raise
        _log.warning("a report is refused", allocation_id=allocation_id, reason=error.message)


def _reported(session: AgentSession, status: agent_pb2.AllocationStatus) -> Reported:
    state = wire.enum_member(State, status.state) or State.STARTING
    report = None
    if state is State.TERMINAL and status.HasField("exit"):
        theirs = replace(wire.from_proto(ExitReport, status.exit), agent_id=session.agent_id)
        report = session.clock.exit_to_ours(theirs)
    return Reported(status.allocation_id, state, status.accepted_at, report)
