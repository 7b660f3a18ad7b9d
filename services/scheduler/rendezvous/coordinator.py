"""Runs one pure Gang for each starting allocation and sends changes to its members.

Owns the members' streams and the timers, and maps the gang's records to messages and back. It keeps nothing beyond this
leader's term, because members repeat everything to the next leader. Used by the runner service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from gangline.domain.resource import Agent
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import runner_pb2
from services.scheduler.rendezvous.gang import FailedProbe, Gang, Probes, RendezvousPhase, on_hello, on_probe, on_time
from services.scheduler.rendezvous.network import Endpoint, NetworkCandidate

_log = structlog.get_logger(__name__)


class Attendance:
    """Represents one member's stream. `outgoing` holds the messages to it; None ends the stream."""

    def __init__(self, allocation_id: str, node_rank: int) -> None:
        self.allocation_id = allocation_id
        self.node_rank = node_rank
        self.outgoing: asyncio.Queue[runner_pb2.JoinGangResponse | GanglineError | None] = asyncio.Queue()
        self._told: runner_pb2.JoinGangResponse | None = None

    def tell(self, message: runner_pb2.JoinGangResponse) -> None:
        """Queues a message, unless it equals the last one."""
        if message != self._told:
            self._told = message
            self.outgoing.put_nowait(message)


@dataclass
class _Meeting:
    gang: Gang
    timer: asyncio.TimerHandle
    attendances: set[Attendance] = field(default_factory=set)


class RendezvousCoordinator:
    """Holds the rendezvous of all starting gangs. interface: the operator's choice of a network interface; None leaves
    the choice to the gang."""

    def __init__(self, rendezvous_seconds: float, interface: str | None) -> None:
        self._rendezvous_seconds = rendezvous_seconds
        self._interface = interface
        self._meetings: dict[str, _Meeting] = {}
        self._end: GanglineError | None = None

    def attend(self, allocation_id: str, agents: Sequence[Agent], node_rank: int, port: int) -> Attendance:
        """Registers a member, for the first time or again. agents: of all members, in the order of node ranks. Raises
        the error of `close_all` after that."""
        if self._end is not None:
            raise self._end
        meeting = self._meetings.get(allocation_id)
        if meeting is None:
            meeting = self._meetings[allocation_id] = self._open(allocation_id, agents)
        attendance = Attendance(allocation_id, node_rank)
        meeting.attendances.add(attendance)
        self._advance(meeting, on_hello(meeting.gang, node_rank, port))
        return attendance

    def probed(self, attendance: Attendance, probes: Probes) -> None:
        meeting = self._meetings.get(attendance.allocation_id)
        if meeting is not None:
            self._advance(meeting, on_probe(meeting.gang, attendance.node_rank, probes))

    def is_over(self, allocation_id: str) -> bool:
        """Returns whether this gang has received its result."""
        meeting = self._meetings.get(allocation_id)
        return meeting is None or meeting.gang.is_over

    def leave(self, attendance: Attendance) -> None:
        meeting = self._meetings.get(attendance.allocation_id)
        if meeting is not None:
            meeting.attendances.discard(attendance)

    def close(self, allocation_id: str) -> None:
        """Ends the rendezvous, because the allocation is gone."""
        meeting = self._meetings.pop(allocation_id, None)
        if meeting is not None:
            meeting.timer.cancel()
            for attendance in meeting.attendances:
                attendance.outgoing.put_nowait(None)

    def close_all(self, error: GanglineError) -> None:
        """Ends all of them for good. error: sent to the members that still listen, and raised for those that come
        later."""
        self._end = error
        for meeting in self._meetings.values():
            meeting.timer.cancel()
            for attendance in meeting.attendances:
                attendance.outgoing.put_nowait(error)
        self._meetings.clear()

    def _open(self, allocation_id: str, agents: Sequence[Agent]) -> _Meeting:
        now = time.time()
        gang = Gang(tuple(agents), now, now + self._rendezvous_seconds, self._interface)
        timer = asyncio.get_running_loop().call_later(self._rendezvous_seconds, self._on_deadline, allocation_id)
        return _Meeting(gang, timer)

    def _on_deadline(self, allocation_id: str) -> None:
        meeting = self._meetings.get(allocation_id)
        if meeting is not None:
            # The clock may lag a little behind the timer; the deadline counts as passed.
            self._advance(meeting, on_time(meeting.gang, max(time.time(), meeting.gang.deadline_at)))

    def _advance(self, meeting: _Meeting, gang: Gang) -> None:
        if gang.phase is not meeting.gang.phase and gang.phase is RendezvousPhase.FAILED and gang.failure is not None:
            _log.warning("rendezvous failed", agents=[agent.id for agent in gang.agents], reason=gang.failure.message)
        meeting.gang = gang
        for attendance in tuple(meeting.attendances):
            attendance.tell(message_for(gang))
            if gang.phase is RendezvousPhase.FAILED:
                attendance.outgoing.put_nowait(None)
                meeting.attendances.discard(attendance)


def message_for(gang: Gang) -> runner_pb2.JoinGangResponse:
    """Returns the message to every member in this phase."""
    if gang.phase is RendezvousPhase.CHOSEN and gang.chosen is not None:
        return runner_pb2.JoinGangResponse(chosen=runner_pb2.GangChosen(candidate=_candidate(gang.chosen)))
    if gang.phase is RendezvousPhase.FAILED and gang.failure is not None:
        failed = runner_pb2.GangFailed(message=gang.failure.message, suspect_agent_ids=gang.failure.suspects)
        failed.kind = wire.enum_number(gang.failure.kind)  # type: ignore[assignment]  # protobuf takes the number
        return runner_pb2.JoinGangResponse(failed=failed)
    if gang.phase is RendezvousPhase.PROBING:
        candidates = [_candidate(candidate) for candidate in gang.candidates]
        return runner_pb2.JoinGangResponse(peers=runner_pb2.GangPeers(candidates=candidates))
    waiting = runner_pb2.GangWaiting(missing_agent_ids=gang.missing, since_at=gang.since_at)
    return runner_pb2.JoinGangResponse(waiting=waiting)


def probes_of(result: runner_pb2.ProbeResult) -> Probes:
    return {
        probed.subnet: tuple(
            FailedProbe(
                Endpoint(failure.agent_id, failure.interface, failure.address, failure.port),
                failure.error or "no answer",
            )
            for failure in probed.failures
        )
        for probed in result.candidates
    }


def _candidate(candidate: NetworkCandidate) -> runner_pb2.NetworkCandidate:
    endpoints = [
        runner_pb2.MemberEndpoint(
            agent_id=endpoint.agent_id, interface=endpoint.interface, address=endpoint.address, port=endpoint.port
        )
        for endpoint in candidate.endpoints
    ]
    return runner_pb2.NetworkCandidate(subnet=candidate.subnet, endpoints=endpoints)
