"""Tests whether this member reaches every other one over each candidate network, before any rank starts.

Owns the probes, all at once and with a deadline, and the sentences for those that fail. The rendezvous calls it and
sends the result to the scheduler, which chooses the first candidate that works for all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from gangline.v1 import runner_pb2
from services.trial_runner.gang import member_link

# Limit for all probes, which run at the same time.
PROBE_SECONDS = 4.0


async def probe_candidates(
    candidates: Sequence[runner_pb2.NetworkCandidate],
    node_rank: int,
    token: str,
    deadline_seconds: float = PROBE_SECONDS,
) -> runner_pb2.ProbeResult:
    """Returns the failures of each candidate, in the order of the candidates."""
    results = await asyncio.gather(
        *(_probe_candidate(candidate, node_rank, token, deadline_seconds) for candidate in candidates)
    )
    return runner_pb2.ProbeResult(candidates=results)


async def _probe_candidate(
    candidate: runner_pb2.NetworkCandidate, node_rank: int, token: str, deadline_seconds: float
) -> runner_pb2.ProbedCandidate:
    own = candidate.endpoints[node_rank]
    others = [peer for peer in range(len(candidate.endpoints)) if peer != node_rank]
    errors = await asyncio.gather(*(_probe(token, candidate, node_rank, peer, deadline_seconds) for peer in others))
    return runner_pb2.ProbedCandidate(
        subnet=candidate.subnet,
        failures=[
            runner_pb2.ProbeFailure(
                agent_id=candidate.endpoints[peer].agent_id,
                interface=own.interface,
                address=candidate.endpoints[peer].address,
                port=candidate.endpoints[peer].port,
                error=error,
            )
            for peer, error in zip(others, errors, strict=True)
            if error
        ],
    )


async def _probe(token: str, candidate: runner_pb2.NetworkCandidate, node_rank: int, peer: int, seconds: float) -> str:
    """Returns why the peer does not answer; empty if it does."""
    try:
        async with asyncio.timeout(seconds):
            endpoint, own_address = candidate.endpoints[peer], candidate.endpoints[node_rank].address
            address = (endpoint.address, endpoint.port)
            wire = await member_link.connect(token, "probe", node_rank, peer, address=address, own_address=own_address)
            wire.close()
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    except member_link.GreetingRefused as error:
        return str(error)
    return ""


def describe_failures(result: runner_pb2.ProbeResult, agent_id: str) -> list[str]:
    """Returns one line for each peer that was not reached: the two agents, the interface, the port and the error."""
    return [
        f"{agent_id} cannot reach {failure.agent_id} at {failure.address} port {failure.port} "
        f"over {failure.interface}: {failure.error}"
        for candidate in result.candidates
        for failure in candidate.failures
    ]
