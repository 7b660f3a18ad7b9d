"""PURE: the rendezvous of one gang as a state machine.

WAITING until every member has registered; PROBING until every member has reported which peers it reached; then CHOSEN
or FAILED for good. A member may repeat all its messages after a lost stream or to a new leader. A member that comes
back on another port has lost its links, so probing starts again. Every function returns a new Gang; `message_for`
builds the message to a member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gangline.domain.resource import Agent
from gangline.domain.state import ExitKind
from services.scheduler.rendezvous.network import Endpoint, NetworkCandidate, NoNetwork, choose_candidates


class RendezvousPhase(StrEnum):
    WAITING = "WAITING"
    PROBING = "PROBING"
    CHOSEN = "CHOSEN"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class FailedProbe:
    """Describes a peer that a member did not reach, and the endpoint that it tried."""

    target: Endpoint
    error: str


Probes = Mapping[str, tuple[FailedProbe, ...]]
"""Subnet of a candidate -> whom this member did not reach over it."""


@dataclass(frozen=True, slots=True)
class RendezvousFailure:
    """Why a gang did not link."""

    kind: ExitKind
    message: str
    suspects: tuple[str, ...] = ()  # see ExitReport.suspect_agent_ids


@dataclass(frozen=True, slots=True)
class Gang:
    """Holds the state of one rendezvous."""

    agents: tuple[Agent, ...]  # agents of the members, in the order of node ranks
    since_at: float  # time at which the first member arrived
    deadline_at: float
    interface: str | None = None
    phase: RendezvousPhase = RendezvousPhase.WAITING
    ports: Mapping[int, int] = field(default_factory=dict)  # by node rank, of the members that have reported theirs
    probes: Mapping[int, Probes] = field(default_factory=dict)  # by node rank, of the members that have reported theirs
    candidates: tuple[NetworkCandidate, ...] = ()
    chosen: NetworkCandidate | None = None
    failure: RendezvousFailure | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(agent.id for rank, agent in enumerate(self.agents) if rank not in self.ports)

    @property
    def is_over(self) -> bool:
        return self.phase in (RendezvousPhase.CHOSEN, RendezvousPhase.FAILED)


def on_hello(gang: Gang, node_rank: int, port: int) -> Gang:
    """Registers a member, for the first time or again."""
    if gang.phase is RendezvousPhase.FAILED or gang.ports.get(node_rank) == port:
        return gang
    is_new_port = node_rank in gang.ports
    gang = replace(gang, ports={**gang.ports, node_rank: port})
    if is_new_port:
        gang = replace(gang, phase=RendezvousPhase.WAITING, probes={}, chosen=None)
    return gang if gang.missing else _begin_probing(gang)


def on_probe(gang: Gang, node_rank: int, probes: Probes) -> Gang:
    """Records that a member has tried all candidates. The report may arrive before the last hello, when the member
    repeats it to a new leader."""
    if gang.is_over:
        return gang
    gang = replace(gang, probes={**gang.probes, node_rank: probes})
    return _judge(gang) if gang.phase is RendezvousPhase.PROBING else gang


def on_time(gang: Gang, now: float) -> Gang:
    """Fails the gang when its deadline has passed."""
    if gang.is_over or now < gang.deadline_at:
        return gang
    seconds = gang.deadline_at - gang.since_at
    if gang.phase is RendezvousPhase.WAITING:
        there = ", ".join(agent.id for agent in gang.agents if agent.id not in gang.missing)
        message = f"{', '.join(gang.missing)} did not arrive within {seconds:g} s after the first of the gang ({there})"
    else:
        silent = [agent.id for rank, agent in enumerate(gang.agents) if rank not in gang.probes]
        message = f"{', '.join(silent)} did not finish probing the network within {seconds:g} s"
    return _fail(gang, ExitKind.RENDEZVOUS, message)


def _begin_probing(gang: Gang) -> Gang:
    ports = [gang.ports[rank] for rank in range(len(gang.agents))]
    candidates = choose_candidates(gang.agents, ports, gang.interface)
    if isinstance(candidates, NoNetwork):
        return _fail(gang, ExitKind.NETWORK, candidates.message, candidates.agent_ids[:1])
    gang = replace(gang, phase=RendezvousPhase.PROBING, candidates=candidates)
    # There is no peer to probe.
    if len(gang.agents) == 1:
        return replace(gang, phase=RendezvousPhase.CHOSEN, chosen=candidates[0])
    return _judge(gang)


def _judge(gang: Gang) -> Gang:
    """Chooses the first candidate over which all members reached one another."""
    if len(gang.probes) < len(gang.agents):
        return gang
    for candidate in gang.candidates:
        if all(probes.get(candidate.subnet) == () for probes in gang.probes.values()):
            return replace(gang, phase=RendezvousPhase.CHOSEN, chosen=candidate)
    return _fail(gang, ExitKind.NETWORK, _unreachable(gang), find_suspects(gang))


def find_suspects(gang: Gang) -> tuple[str, ...]:
    """Returns the agents whose network explains the failures: over at least one candidate, every pair that failed has
    such an agent. So a gang without it would have met there. One agent: it is the cause. Two: one of the pair is.
    """
    found: list[set[str]] = []
    for candidate in gang.candidates:
        pairs = []
        for rank, agent in enumerate(gang.agents):
            failures = gang.probes[rank].get(candidate.subnet)
            # A member that has not probed the candidate may have failed by itself.
            pairs += [{agent.id}] if failures is None else [{agent.id, failed.target.agent_id} for failed in failures]
        found.append(set.intersection(*pairs) if pairs else set())
    suspects = min((agent_ids for agent_ids in found if agent_ids), key=len, default=set())
    return tuple(agent.id for agent in gang.agents if agent.id in suspects)


def _unreachable(gang: Gang) -> str:
    """Names the first pair that failed over each candidate."""
    parts = []
    for candidate in gang.candidates:
        for rank, agent in enumerate(gang.agents):
            failures = gang.probes[rank].get(candidate.subnet)
            if failures:
                parts.append(_describe(agent, failures[0]))
                break
            if failures is None:
                parts.append(f"{agent.id} did not probe {candidate.subnet}")
                break
    return "; ".join(parts)


def _describe(agent: Agent, failed: FailedProbe) -> str:
    target = failed.target
    where = f"{target.address} port {target.port} over interface {target.interface}"
    return f"{agent.id} cannot reach {target.agent_id} at {where}: {failed.error}"


def _fail(gang: Gang, kind: ExitKind, message: str, suspects: tuple[str, ...] = ()) -> Gang:
    return replace(gang, phase=RendezvousPhase.FAILED, failure=RendezvousFailure(kind, message, suspects))
