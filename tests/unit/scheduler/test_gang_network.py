"""Hosts without a network for gangs: which ones placement leaves out, and which one of a gang is to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Exclusion, ExitReport, Member
from gangline.domain.experiment import Trial
from gangline.domain.resource import Agent, FailedStart, NetworkInterface
from gangline.domain.state import ExitKind, ReasonCode, State
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Snapshot, apply_changes, plan
from services.scheduler.placement.request.snapshot import default_pool
from services.scheduler.rendezvous.gang import FailedProbe, Gang, RendezvousPhase, find_suspects
from services.scheduler.rendezvous.network import Endpoint, NetworkCandidate, gang_problems
from services.scheduler.state.records import Draft, SchedulerState
from services.scheduler.state.rules import Rules
from services.scheduler.transition.availability import registered
from services.scheduler.transition.exclusion import PAIR_SECONDS, exclude

LO = NetworkInterface("lo", "127.0.0.1", 8)
NOW = 1000.0
RULES = Rules(exclusion_seconds=600.0)


def _host(number: int, *up: str, down: tuple[str, ...] = ()) -> Agent:
    """Interfaces eth0 and fast0 are in networks that all hosts share; own0 is in one of its own."""
    networks = {"eth0": f"10.0.0.{number}", "fast0": f"10.9.0.{number}", "own0": f"10.7.{number}.1"}
    made = {name: NetworkInterface(name, address, 24, 1000) for name, address in networks.items()}
    return Agent(
        f"a{number}",
        interfaces=(LO, *(made[name] for name in up)),
        down_interfaces=tuple(made[name] for name in down),
        host_id=f"h{number}",
    )


def test_a_host_without_the_named_interface_joins_no_gang() -> None:
    hosts = [_host(1, "eth0", "fast0"), _host(2, "eth0", down=("fast0",)), _host(3, "eth0")]
    assert gang_problems(hosts, "fast0") == {
        "a2": "its network interface fast0 is down",
        "a3": "it has no network interface fast0, which --network-interface of the schedulers names",
    }


def test_a_host_whose_only_shared_network_is_down_joins_no_gang() -> None:
    hosts = [_host(1, "own0", "fast0"), _host(2, "own0", down=("fast0",)), _host(3, "own0", "fast0")]
    text = "its network interface fast0 (10.9.0.0/24) is down, and it shares no other network with another host"
    assert gang_problems(hosts) == {"a2": text}
    pulled = [_host(1, "own0", down=("fast0",)), _host(2, "own0", down=("fast0",))]
    assert gang_problems(pulled) == {"a1": text, "a2": text}, "one cable, both ends of which are down"


@pytest.mark.parametrize(
    "hosts",
    [
        [_host(1, "eth0", "fast0"), _host(2, "eth0", down=("fast0",))],
        [_host(1, "own0"), _host(2, "own0")],
        [_host(1, "own0"), _host(2, down=("own0",))],
        [replace(_host(number, "own0", down=("fast0",)), host_id="h") for number in (1, 2)],
    ],
    ids=["another network is shared", "a router may join them", "its own network alone is down", "one host"],
)
def test_a_host_that_others_may_reach_joins_gangs(hosts: list[Agent]) -> None:
    assert gang_problems(hosts) == {}


POOL = PoolConfig("default")


def _plan(agents: list[AgentRoom], *requests: PendingRequest) -> Plan:
    return plan(Snapshot((POOL,), tuple(agents), requests), now=NOW)


def _rooms(*problems: str) -> list[AgentRoom]:
    return [
        AgentRoom(f"a{number}", "default", 2, gang_problem=problem) for number, problem in enumerate(problems, start=1)
    ]


def _gang(number: int, slots: int) -> PendingRequest:
    return PendingRequest(f"{number}.1", f"experiment {number}", "default", slots, submitted_at=float(number))


def test_a_gang_takes_the_hosts_with_a_network_and_one_host_takes_any() -> None:
    decided = _plan(_rooms("", "fast0 is down", ""), _gang(1, 4), _gang(2, 2))
    assert {each.trial_id: dict(each.slots_by_agent) for each in decided.assignments} == {
        "1.1": {"a1": 2, "a3": 2},
        "2.1": {"a2": 2},
    }


def test_a_gang_that_lacks_a_network_says_so_and_starts_with_it() -> None:
    snapshot = Snapshot((default_pool("default"),), tuple(_rooms("", "fast0 is down", "")), (_gang(1, 6),))
    decided = plan(snapshot, NOW)
    reason = decided.reasons["1.1"]
    assert reason.code is ReasonCode.AGENTS_UNHEALTHY
    assert reason.message == (
        "needs 6 slots; the agents that are well, 2 agents of 2 slots, cannot hold it without a2 (fast0 is down)"
    )
    assert reason.would_start_if == "the network interface for gangs is up on a2"
    after = plan(apply_changes(snapshot, decided.changes["1.1"]), NOW)
    assert [each.trial_id for each in after.assignments] == ["1.1"]


def test_a_request_for_one_agent_has_no_reason_in_a_network() -> None:
    rooms = [replace(room, is_usable=False, problem="away") for room in _rooms("fast0 is down")]
    reason = _plan(rooms, _gang(1, 1)).reasons["1.1"]
    assert (reason.message, reason.would_start_if) == (
        "needs 1 slot; only a1 (away) could hold it",
        "these agents come back with all their slots: a1",
    )


def _probed(size: int, *broken: tuple[str, set[frozenset[int]]]) -> Gang:
    """A gang whose members have probed. broken: subnet -> pairs of node ranks that did not reach one another there."""
    agents = tuple(_host(number + 1, "eth0", "fast0") for number in range(size))
    endpoints = [Endpoint(agent.id, "eth0", "10.0.0.1", 1) for agent in agents]
    candidates = tuple(NetworkCandidate(subnet, tuple(endpoints)) for subnet, _ in broken)
    probes = {
        rank: {
            subnet: tuple(
                FailedProbe(endpoints[peer], "no answer") for peer in range(size) if frozenset({rank, peer}) in pairs
            )
            for subnet, pairs in broken
        }
        for rank in range(size)
    }
    return Gang(agents, 0.0, 60.0, phase=RendezvousPhase.PROBING, probes=probes, candidates=candidates)


_ALL = {frozenset({0, 1}), frozenset({0, 2}), frozenset({1, 2})}


@pytest.mark.parametrize(
    ("gang", "suspects"),
    [
        (_probed(3, ("eth0", {frozenset({0, 1}), frozenset({1, 2})})), ("a2",)),
        (_probed(3, ("fast0", _ALL), ("eth0", {frozenset({0, 1}), frozenset({1, 2})})), ("a2",)),
        (_probed(3, ("eth0", {frozenset({0, 1})})), ("a1", "a2")),
        (_probed(2, ("fast0", {frozenset({0, 1})}), ("eth0", {frozenset({0, 1})})), ("a1", "a2")),
        (_probed(3, ("eth0", _ALL)), ()),
    ],
    ids=["one host", "one host beside a dead network", "a pair", "a gang of two", "everybody"],
)
def test_the_probes_show_whose_network_is_the_cause(gang: Gang, suspects: tuple[str, ...]) -> None:
    assert find_suspects(gang) == suspects


def _state(*agents: Agent) -> Draft:
    draft = Draft(SchedulerState())
    for agent in agents:
        draft.put(agent)
    return draft


def _failed(*members: str, suspects: tuple[str, ...]) -> Allocation:
    exits = tuple(
        ExitReport(agent_id, ExitKind.NETWORK, "no route", failed_at=NOW, suspect_agent_ids=suspects)
        for agent_id in members
    )
    made = tuple(Member(agent_id, rank) for rank, agent_id in enumerate(members))
    return Allocation("1.1.1", "1.1", 1, 1, 5, "default", made, State.STOPPING, exits)


def _avoided(trial: Trial) -> dict[str, float]:
    return {exclusion.agent_id: exclusion.until_at - NOW for exclusion in trial.exclusions}


TRIAL = Trial("1.1", 1, 1)


def test_the_culprit_is_avoided_and_counts_as_a_failed_start() -> None:
    draft = _state(*(Agent(f"a{number}") for number in (1, 2, 3)))
    trial = exclude(draft, TRIAL, _failed("a1", "a2", "a3", suspects=("a2",)), RULES, NOW)
    assert _avoided(trial) == {"a2": 600.0}
    found = draft.find(Agent, "a2")
    assert found is not None
    assert [start.trial_id for start in found.failed_starts] == ["1.1"]


def test_a_pair_is_taken_apart_and_its_innocent_agent_readmitted() -> None:
    draft = _state(*(Agent(f"a{number}") for number in (1, 2, 3)))
    first = exclude(draft, TRIAL, _failed("a1", "a2", suspects=("a1", "a2")), RULES, NOW)
    assert _avoided(first) == {"a1": PAIR_SECONDS}
    found = draft.find(Agent, "a1")
    assert found is not None
    assert not found.failed_starts, "nothing is certain yet"
    again = exclude(draft, first, _failed("a2", "a3", suspects=("a2", "a3")), RULES, NOW)
    assert _avoided(again) == {"a2": 600.0}
    other = exclude(draft, TRIAL, _failed("a2", "a3", suspects=("a2", "a3")), RULES, NOW)
    assert _avoided(other) == {"a2": PAIR_SECONDS}, "the one that has failed others before"


def test_suspects_outside_of_the_gang_are_not_believed() -> None:
    draft = _state(Agent("a1"), Agent("a2"), Agent("a9"))
    assert exclude(draft, TRIAL, _failed("a1", "a2", suspects=("a9",)), RULES, NOW).exclusions == ()


def test_an_interface_that_is_up_again_ends_exclusions_at_once() -> None:
    start = FailedStart("1.1", NOW - 5, "no route")
    before = replace(_host(2, "eth0", down=("fast0",)), failed_starts=(start,))
    held = replace(TRIAL, exclusions=(Exclusion("a2", "no route", NOW - 5, NOW + 595),))
    draft = _state(before)
    draft.put(held)
    draft.add(registered(draft, _host(2, "eth0", "fast0"), RULES, NOW))
    agent = draft.find(Agent, "a2")
    assert agent is not None
    assert (agent.trusted_at, agent.failed_starts) == (NOW, ())


def test_a_bridge_of_containers_that_goes_up_says_nothing_about_the_agent() -> None:
    bridge = NetworkInterface("docker0", "172.17.0.1", 16)
    start = FailedStart("1.1", NOW - 5, "no route")
    before = replace(_host(2, "eth0"), down_interfaces=(bridge,), failed_starts=(start,))
    draft = _state(before)
    linked = _host(2, "eth0")
    draft.add(registered(draft, replace(linked, interfaces=(*linked.interfaces, bridge)), RULES, NOW))
    agent = draft.find(Agent, "a2")
    assert agent is not None
    assert (agent.trusted_at, agent.failed_starts) == (0.0, (start,))


def test_an_interface_that_is_up_again_counts_while_another_one_stays_down() -> None:
    start = FailedStart("1.1", NOW - 5, "no route")
    before = replace(_host(2, down=("eth0", "own0")), failed_starts=(start,))
    draft = _state(before)
    draft.add(registered(draft, _host(2, "eth0", down=("own0",)), RULES, NOW))
    agent = draft.find(Agent, "a2")
    assert agent is not None
    assert (agent.trusted_at, agent.failed_starts) == (NOW, ())
