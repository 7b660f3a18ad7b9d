"""Maps the rendezvous' records to the messages of runner.proto and back. It contains no logic."""

from __future__ import annotations

from gangline import wire
from gangline.v1 import runner_pb2
from services.scheduler.rendezvous.gang import FailedProbe, Gang, Phase, Probes
from services.scheduler.rendezvous.network import Candidate, Endpoint


def message_for(gang: Gang) -> runner_pb2.JoinGangResponse:
    """Returns the message to every member in this phase."""
    if gang.phase is Phase.CHOSEN and gang.chosen is not None:
        return runner_pb2.JoinGangResponse(chosen=runner_pb2.GangChosen(candidate=_candidate(gang.chosen)))
    if gang.phase is Phase.FAILED and gang.failure is not None:
        failed = runner_pb2.GangFailed(message=gang.failure.message)
        failed.kind = wire.enum_number(gang.failure.kind)  # type: ignore[assignment]  # protobuf takes the number
        return runner_pb2.JoinGangResponse(failed=failed)
    if gang.phase is Phase.PROBING:
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


def _candidate(candidate: Candidate) -> runner_pb2.NetworkCandidate:
    endpoints = [
        runner_pb2.MemberEndpoint(
            agent_id=endpoint.agent_id, interface=endpoint.interface, address=endpoint.address, port=endpoint.port
        )
        for endpoint in candidate.endpoints
    ]
    return runner_pb2.NetworkCandidate(subnet=candidate.subnet, endpoints=endpoints)
