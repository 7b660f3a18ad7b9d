"""RunnerService: trial runners meet, and report what decides over their trial."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import structlog

from gangline.domain.allocation import Allocation, ExitReport
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.fusion import FusionRecord, recall
from gangline.domain.id import describe_allocation, parse_trial_id
from gangline.domain.resource import Agent
from gangline.domain.state import ExitKind, Outcome, State
from gangline.errors import GanglineError, conflict, invalid
from gangline.protocol import wire
from gangline.v1 import runner_pb2, runner_pb2_grpc
from services.common.leader_probe import not_leader
from services.scheduler.agents.runner_spec import witnesses_of
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.term import Term
from services.scheduler.rendezvous.coordinator import Attendance, RendezvousCoordinator, probes_of
from services.scheduler.service.access import require_allocation, require_member
from services.scheduler.state import metrics
from services.scheduler.state.records import Records, get
from services.scheduler.state.rules import Rules
from services.scheduler.transition.fence import why_over
from services.scheduler.transition.report import best_validation_of
from services.scheduler.transition.stop import grace_left

_log = structlog.get_logger(__name__)

Requests = AsyncIterator[runner_pb2.JoinGangRequest]


class RunnerService(runner_pb2_grpc.RunnerServiceServicer):
    def __init__(self, leader_status: LeaderStatus) -> None:
        self._leader_status = leader_status

    async def JoinGang(  # noqa: N802 - grpc's name
        self, request_iterator: Requests, _context: Any
    ) -> AsyncIterator[runner_pb2.JoinGangResponse]:
        term = await self._leader_status.reach()
        hello = await _read_hello(request_iterator)
        require_allocation(hello.allocation_id)
        attendance = _attend(term, hello)
        reading = asyncio.create_task(_read(term.coordinator, attendance, request_iterator))
        try:
            while (message := await attendance.outgoing.get()) is not None:
                if isinstance(message, GanglineError):
                    raise message
                yield message
        finally:
            reading.cancel()
            term.coordinator.leave(attendance)
            await asyncio.gather(reading, return_exceptions=True)

    async def ReportTrial(  # noqa: N802 - grpc's name
        self, request: runner_pb2.ReportTrialRequest, _context: Any
    ) -> runner_pb2.ReportTrialResponse:
        require_allocation(request.allocation_id)
        term = await self._leader_status.reach()
        _check_member(term.state, request.allocation_id)
        over_reason = await term.intake.report(request.allocation_id, request.node_rank, request.report)
        if over_reason:
            return runner_pb2.ReportTrialResponse(over_reason=over_reason)
        order = term.traces.on_report(term.state, request.allocation_id, request.node_rank, request.report)
        own_address, directory = term.context.own_address, term.context.directory
        return runner_pb2.ReportTrialResponse(
            scheduler_addresses=directory.schedulers_after(own_address),
            gateway_addresses=directory.addresses_of("gateway"),
            trace=wire.to_proto(order) if order is not None else None,
        )

    async def RenewAttempt(  # noqa: N802 - grpc's name
        self, request: runner_pb2.RenewAttemptRequest, _context: Any
    ) -> runner_pb2.RenewAttemptResponse:
        require_allocation(request.allocation_id)
        term = self._leader_status.require()
        if not term.leadership.is_fresh:
            # Another scheduler may lead by now, and grants nothing of what is promised here.
            raise not_leader()
        _check_member(term.state, request.allocation_id)
        if request.HasField("exit"):
            await _take_exit(term, request)
        over_reason = why_over(term.state, request.allocation_id, request.node_rank)
        if over_reason:
            metrics.FENCED_REPORTS.inc()
            return runner_pb2.RenewAttemptResponse(over_reason=over_reason)
        committee = term.committee
        member_ids = [agent.id for agent in committee]
        term.attempts.renew(request.allocation_id, request.node_rank, member_ids, time.monotonic())
        term_context = term.context
        return runner_pb2.RenewAttemptResponse(
            lease_seconds=term_context.agent_lease_seconds,
            committee=witnesses_of(committee),
            stop=_stop_of(get(term.state, Allocation, request.allocation_id), term_context.rules),
            scheduler_addresses=term_context.directory.schedulers_after(term_context.own_address),
        )

    async def FindFusion(  # noqa: N802 - grpc's name
        self, request: runner_pb2.FindFusionRequest, _context: Any
    ) -> runner_pb2.FindFusionResponse:
        require_allocation(request.allocation_id)
        state = (await self._leader_status.reach()).state
        allocation = get(state, Allocation, request.allocation_id)
        require_member(allocation)
        experiment = get(state, Experiment, parse_trial_id(allocation.trial_id)[0])
        matches = recall(state.all_of(FusionRecord), request.family, experiment.owner)
        return runner_pb2.FindFusionResponse(records=[wire.to_proto(record) for record in matches])

    async def FindTrialFacts(  # noqa: N802 - grpc's name
        self, request: runner_pb2.FindTrialFactsRequest, _context: Any
    ) -> runner_pb2.FindTrialFactsResponse:
        require_allocation(request.allocation_id)
        state = (await self._leader_status.reach()).state
        allocation = get(state, Allocation, request.allocation_id)
        require_member(allocation)
        trial = get(state, Trial, allocation.trial_id)
        return runner_pb2.FindTrialFactsResponse(
            metadata_json=trial.metadata_json,
            best_validation=best_validation_of(state, trial.experiment_id),
            # Another order to stop goes on with the trial later, so the runner has to know of it before the ranks end.
            stop_reason=trial.reason if trial.closing is Outcome.COMPLETED else "",
        )


def _check_member(state: Records, allocation_id: str) -> None:
    """Of an allocation that is on record no more, its runner learns that by the answer."""
    allocation = state.find(Allocation, allocation_id)
    if allocation is not None:
        require_member(allocation)


async def _take_exit(term: Term, request: runner_pb2.RenewAttemptRequest) -> None:
    """A connected agent speaks for its members itself, unless it is lost before it does."""
    allocation = term.state.find(Allocation, request.allocation_id)
    for member in allocation.members if allocation is not None else ():
        if member.node_rank != request.node_rank:
            continue
        report = replace(wire.from_proto(ExitReport, request.exit), agent_id=member.agent_id)
        if term.sessions.find(member.agent_id) is None:
            await term.intake.exit(request.allocation_id, report)
        else:
            term.intake.told_exits[request.allocation_id, member.node_rank] = report


def _stop_of(allocation: Allocation, rules: Rules) -> runner_pb2.AttemptStop | None:
    """None while nothing is asked of it."""
    if allocation.state is not State.STOPPING:
        return None
    grace_seconds = grace_left(allocation, rules.force_seconds, time.time())
    kind = wire.enum_number(allocation.stop_kind or ExitKind.KILLED)
    return runner_pb2.AttemptStop(kind=kind, reason=allocation.stop_reason, grace_seconds=grace_seconds)  # type: ignore[arg-type]  # an enum's number is what protobuf takes


async def _read_hello(requests: Requests) -> runner_pb2.GangHello:
    first = await anext(aiter(requests), None)
    if first is None or not first.HasField("hello"):
        raise invalid("gang.no_hello", "a runner's stream starts with its hello")
    return first.hello


def _attend(term: Term, hello: runner_pb2.GangHello) -> Attendance:
    """Raises GanglineError `allocation.not_found` or `allocation.stopping` when there is nothing to start."""
    allocation = get(term.state, Allocation, hello.allocation_id)
    require_member(allocation)
    if allocation.state is State.STOPPING:
        raise conflict(
            "allocation.stopping", f"{describe_allocation(allocation.id)} is stopping: {allocation.stop_reason}"
        )
    if not 0 <= hello.node_rank < len(allocation.members):
        raise invalid("gang.no_member", f"{describe_allocation(allocation.id)} has no node rank {hello.node_rank}")
    agents = [get(term.state, Agent, member.agent_id) for member in allocation.members]
    return term.coordinator.attend(allocation.id, agents, hello.node_rank, hello.port)


async def _read(coordinator: RendezvousCoordinator, attendance: Attendance, requests: Requests) -> None:
    """Receives probes. A member that has closed its side still receives the end of the rendezvous."""
    async for request in requests:
        if request.HasField("probe"):
            coordinator.probed(attendance, probes_of(request.probe))
    if coordinator.is_over(attendance.allocation_id):
        attendance.outgoing.put_nowait(None)
