"""PURE: the networks over which the members of a gang may reach one another, in the order of preference.

Owns the choice of subnets: those that all members share, the fastest first; loopback only if all share one host; never
a container's bridge. The members' probes then find out whether a candidate works.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gangline.domain.resource import Agent, NetworkInterface

LOOPBACK = "127.0.0.0/8"
ROUTED = "routed"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Describes where one member can be reached over one candidate."""

    agent_id: str
    interface: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class NetworkCandidate:
    """Describes one network."""

    subnet: str  # name of the network in probe results
    endpoints: tuple[Endpoint, ...]  # in the order of node ranks


@dataclass(frozen=True, slots=True)
class NoNetwork:
    """Reports that no candidate exists; message names the agents that lack one, agent_ids."""

    message: str
    agent_ids: tuple[str, ...]


def gang_problems(agents: Iterable[Agent], interface: str | None = None) -> dict[str, str]:
    """Returns the agents that cannot be part of a gang over several agents, with the reason. agents: of one pool, those
    that are alive. interface: the operator's choice.

    Without such a choice, an agent is left out if one of its interfaces is down in whose network others are or were,
    and it shares no other network with an agent of another host. Hosts that share no network at all may be joined by a
    router, so that alone means nothing.
    """
    agents = tuple(agents)
    if interface:
        named = {agent.id: _without_named(agent, interface) for agent in agents}
        return {agent_id: problem for agent_id, problem in named.items() if problem}
    down_by_agent = {agent.id: down for agent in agents if (down := _usable(agent.down_interfaces))}
    if not down_by_agent:
        return {}
    hosts_up: dict[str, set[str]] = defaultdict(set)
    hosts_ever: dict[str, set[str]] = defaultdict(set)
    for agent in agents:
        host = agent.host_id or agent.id
        up = {_subnet(own) for own in agent.interfaces if not own.is_virtual and _is_reachable(own)}
        for name in up:
            hosts_up[name].add(host)
        for name in up | {_subnet(own) for own in down_by_agent.get(agent.id, ())}:
            hosts_ever[name].add(host)
    problems: dict[str, str] = {}
    for agent in agents:
        if agent.id not in down_by_agent:
            continue
        host = agent.host_id or agent.id
        down = [own for own in down_by_agent[agent.id] if hosts_ever[_subnet(own)] - {host}]
        if down and not any(hosts_up[_subnet(own)] - {host} for own in _usable(agent.interfaces)):
            what = f"its network interface {down[0].name} ({_subnet(down[0])}) is down"
            problems[agent.id] = f"{what}, and it shares no other network with another host"
    return problems


def _without_named(agent: Agent, interface: str) -> str:
    if any(own.name == interface for own in agent.interfaces):
        return ""
    if any(own.name == interface for own in agent.down_interfaces):
        return f"its network interface {interface} is down"
    return f"it has no network interface {interface}, which --network-interface of the schedulers names"


def choose_candidates(
    agents: Sequence[Agent], ports: Sequence[int], interface: str | None = None
) -> tuple[NetworkCandidate, ...] | NoNetwork:
    """Returns the candidates. agents and ports: of the members, in the order of node ranks. interface: the operator's
    choice, which excludes all others."""
    if interface:
        return _named(agents, ports, interface)
    if len({agent.host_id or agent.id for agent in agents}) == 1:
        loopback = (Endpoint(agent.id, "lo", "127.0.0.1", port) for agent, port in zip(agents, ports, strict=True))
        return (NetworkCandidate(LOOPBACK, tuple(loopback)),)
    # Loopback is ruled out here: the gang spans several hosts.
    usable = [_usable(agent.interfaces) for agent in agents]
    if not all(usable):
        alone = tuple(agent.id for agent, interfaces in zip(agents, usable, strict=True) if not interfaces)
        text = f"no network interface besides lo and bridges on {', '.join(alone)}; each agent of a gang needs one"
        return NoNetwork(text, alone)
    shared = set.intersection(*({_subnet(own) for own in interfaces} for interfaces in usable))
    if not shared:
        # Hosts of one cluster may be in networks that a router joins, or have addresses of a /32.
        return (_candidate(ROUTED, agents, ports, [interfaces[0] for interfaces in usable]),)
    picks = {name: [_fastest_in(name, interfaces) for interfaces in usable] for name in shared}
    order = sorted(picks, key=lambda name: (-min(pick.speed_mbit for pick in picks[name]), name))
    return tuple(_candidate(name, agents, ports, picks[name]) for name in order)


def _named(agents: Sequence[Agent], ports: Sequence[int], interface: str) -> tuple[NetworkCandidate, ...] | NoNetwork:
    interfaces = [next((own for own in agent.interfaces if own.name == interface), None) for agent in agents]
    missing = tuple(agent.id for agent, own in zip(agents, interfaces, strict=True) if own is None)
    if missing:
        return NoNetwork(
            f"network interface {interface!r}, which the settings name, is down or does not exist on "
            f"{', '.join(missing)}; bring it up, or correct --network-interface of the schedulers",
            missing,
        )
    return (_candidate(interface, agents, ports, [own for own in interfaces if own is not None]),)


def _usable(interfaces: Iterable[NetworkInterface]) -> list[NetworkInterface]:
    """Returns the interfaces that other hosts can reach, the fastest first."""
    reachable = [own for own in interfaces if not own.is_virtual and _is_reachable(own)]
    return sorted(reachable, key=lambda own: (-own.speed_mbit, own.name, own.address))


@lru_cache(1 << 14)
def _is_reachable(interface: NetworkInterface) -> bool:
    address = ipaddress.ip_address(interface.address)
    return not (address.is_loopback or address.is_link_local)


@lru_cache(1 << 14)
def _subnet(interface: NetworkInterface) -> str:
    return str(ipaddress.ip_network(f"{interface.address}/{interface.prefix_length}", strict=False))


def _fastest_in(subnet: str, interfaces: Sequence[NetworkInterface]) -> NetworkInterface:
    return next(own for own in interfaces if _subnet(own) == subnet)


def _candidate(
    subnet: str, agents: Sequence[Agent], ports: Sequence[int], picked: Sequence[NetworkInterface]
) -> NetworkCandidate:
    members = zip(agents, ports, picked, strict=True)
    return NetworkCandidate(
        subnet, tuple(Endpoint(agent.id, own.name, own.address, port) for agent, port, own in members)
    )
