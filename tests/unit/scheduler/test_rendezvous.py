"""Where gangs meet: the choice of networks and the state machine."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from gangline.domain.resource import Agent, NetworkInterface
from gangline.domain.state import ExitKind
from services.scheduler.rendezvous.gang import FailedProbe, Gang, RendezvousPhase, on_hello, on_probe, on_time
from services.scheduler.rendezvous.network import (
    LOOPBACK,
    ROUTED,
    Endpoint,
    NetworkCandidate,
    NoNetwork,
    choose_candidates,
)


def _agent(agent_id: str, *interfaces: NetworkInterface, host_id: str | None = None) -> Agent:
    return Agent(agent_id, interfaces=interfaces, host_id=host_id if host_id is not None else agent_id)


def _interface(name: str, address: str, speed: int = 1000, prefix: int = 24) -> NetworkInterface:
    return NetworkInterface(name, address, prefix, speed)


LO = _interface("lo", "127.0.0.1", 0, 8)
DOCKER = _interface("docker0", "172.17.0.1", 100_000, 16)
A1 = _agent("a1", LO, DOCKER, _interface("eth0", "10.0.0.1"), _interface("ib0", "10.9.0.1", 100_000))
A2 = _agent("a2", LO, DOCKER, _interface("ens3", "10.0.0.2"), _interface("ib0", "10.9.0.2", 200_000))


def _candidates(*agents: Agent, interface: str | None = None) -> tuple[NetworkCandidate, ...]:
    candidates = choose_candidates(agents, list(range(4000, 4000 + len(agents))), interface)
    assert not isinstance(candidates, NoNetwork)
    return candidates


def test_shared_subnets_fastest_first_never_a_bridge() -> None:
    candidates = _candidates(A1, A2)
    assert [candidate.subnet for candidate in candidates] == ["10.9.0.0/24", "10.0.0.0/24"]
    assert candidates[1].endpoints == (
        Endpoint("a1", "eth0", "10.0.0.1", 4000),
        Endpoint("a2", "ens3", "10.0.0.2", 4001),
    )


def test_the_slowest_member_counts() -> None:
    slow = replace(A2, interfaces=(_interface("ens3", "10.0.0.2", 10_000), _interface("ib0", "10.9.0.2", 100)))
    fast = replace(A1, interfaces=(_interface("eth0", "10.0.0.1", 10_000), _interface("ib0", "10.9.0.1", 100_000)))
    assert _candidates(fast, slow)[0].subnet == "10.0.0.0/24"


def test_loopback_only_when_all_share_one_host() -> None:
    same = [replace(agent, host_id="h") for agent in (A1, A2)]
    assert _candidates(*same) == (
        NetworkCandidate(LOOPBACK, (Endpoint("a1", "lo", "127.0.0.1", 4000), Endpoint("a2", "lo", "127.0.0.1", 4001))),
    )
    assert all(candidate.subnet != LOOPBACK for candidate in _candidates(A1, A2))


def test_hosts_in_different_subnets_try_their_fastest() -> None:
    far = _agent("a3", LO, _interface("eth0", "192.168.7.3"))
    candidates = _candidates(A1, far)
    assert [candidate.subnet for candidate in candidates] == [ROUTED]
    assert [endpoint.address for endpoint in candidates[0].endpoints] == ["10.9.0.1", "192.168.7.3"]


def test_the_operators_interface_overrides() -> None:
    assert [candidate.subnet for candidate in _candidates(A1, A2, interface="ib0")] == ["ib0"]
    missing = choose_candidates([A1, A2], [1, 2], "eth0")
    assert isinstance(missing, NoNetwork)
    assert "'eth0'" in missing.message
    assert "a2" in missing.message


def test_an_agent_without_a_network_is_named() -> None:
    alone = choose_candidates([A1, _agent("a9", LO, DOCKER)], [1, 2])
    assert isinstance(alone, NoNetwork)
    assert "a9" in alone.message


GANG = Gang((A1, A2), since_at=100.0, deadline_at=160.0)
GOOD = {"10.9.0.0/24": (), "10.0.0.0/24": ()}
BROKEN = (FailedProbe(Endpoint("a2", "ib0", "10.9.0.2", 4001), "timed out"),)


def _met() -> Gang:
    return on_hello(on_hello(GANG, 0, 4000), 1, 4001)


def test_the_way_to_a_chosen_network() -> None:
    waiting = on_hello(GANG, 0, 4000)
    assert (waiting.phase, waiting.missing) == (RendezvousPhase.WAITING, ("a2",))
    probing = on_hello(waiting, 1, 4001)
    assert probing.phase is RendezvousPhase.PROBING
    half = on_probe(probing, 0, GOOD)
    assert half.phase is RendezvousPhase.PROBING
    both = on_probe(half, 1, GOOD)
    assert both.chosen is not None
    assert both.chosen.subnet == "10.9.0.0/24"


def test_a_network_that_one_pair_cannot_use_is_not_taken() -> None:
    gang = on_probe(on_probe(_met(), 0, {"10.9.0.0/24": BROKEN, "10.0.0.0/24": ()}), 1, GOOD)
    assert gang.chosen is not None
    assert gang.chosen.subnet == "10.0.0.0/24"


def test_a_network_that_a_member_did_not_probe_is_not_taken() -> None:
    partly = on_probe(on_probe(_met(), 0, GOOD), 1, {"10.0.0.0/24": ()})
    assert partly.chosen is not None
    assert partly.chosen.subnet == "10.0.0.0/24"
    nothing = on_probe(on_probe(_met(), 0, GOOD), 1, {})
    assert nothing.failure is not None
    assert nothing.failure.kind is ExitKind.NETWORK
    assert nothing.failure.message == "a2 did not probe 10.9.0.0/24; a2 did not probe 10.0.0.0/24"


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["10.9.0.0/24", "10.0.0.0/24"]), st.sampled_from([(), BROKEN])),
        min_size=2,
        max_size=2,
    )
)
def test_the_first_network_over_which_each_member_reached_each_is_taken(
    probes: list[dict[str, tuple[FailedProbe, ...]]],
) -> None:
    gang = _met()
    for rank, probed in enumerate(probes):
        gang = on_probe(gang, rank, probed)
    good = [
        candidate
        for candidate in gang.candidates
        if all(candidate.subnet in probed and not probed[candidate.subnet] for probed in probes)
    ]
    assert gang.chosen == (good[0] if good else None)
    assert (gang.phase is RendezvousPhase.FAILED) == (not good)


def test_no_network_at_all_names_hosts_interface_and_port() -> None:
    broken = {"10.9.0.0/24": BROKEN, "10.0.0.0/24": BROKEN}
    gang = on_probe(on_probe(_met(), 0, broken), 1, GOOD)
    assert gang.failure is not None
    assert gang.failure.kind is ExitKind.NETWORK
    assert "a1 cannot reach a2 at 10.9.0.2 port 4001 over interface ib0: timed out" in gang.failure.message


def test_a_single_member_needs_no_probe() -> None:
    gang = on_hello(Gang((A1,), 0.0, 60.0), 0, 4000)
    assert gang.phase is RendezvousPhase.CHOSEN


def test_deadline_names_who_is_missing() -> None:
    waiting = on_hello(GANG, 0, 4000)
    assert on_time(waiting, 159.9) is waiting
    failed = on_time(waiting, 160.0)
    assert failed.failure is not None
    assert failed.failure.kind is ExitKind.RENDEZVOUS
    assert failed.failure.message == "a2 did not arrive within 60 s after the first of the gang (a1)"
    silent = on_time(on_probe(_met(), 0, GOOD), 160.0)
    assert silent.failure is not None
    assert silent.failure.message == "a2 did not finish probing the network within 60 s"


def test_after_a_change_of_the_leader_members_say_everything_again_in_any_order() -> None:
    gang = on_probe(on_hello(GANG, 1, 4001), 1, GOOD)
    gang = on_probe(on_hello(gang, 0, 4000), 0, GOOD)
    assert gang.phase is RendezvousPhase.CHOSEN


def test_a_member_that_comes_back_as_it_was_changes_nothing() -> None:
    chosen = on_probe(on_probe(_met(), 0, GOOD), 1, GOOD)
    assert on_hello(chosen, 1, 4001) is chosen
    assert on_probe(chosen, 1, {}) is chosen


def test_a_member_that_comes_back_on_another_port_starts_probing_again() -> None:
    chosen = on_probe(on_probe(_met(), 0, GOOD), 1, GOOD)
    again = on_hello(chosen, 1, 5555)
    assert (again.phase, again.probes, again.chosen) == (RendezvousPhase.PROBING, {}, None)
    assert again.candidates[0].endpoints[1].port == 5555


def test_failed_stays_failed() -> None:
    failed = on_time(on_hello(GANG, 0, 4000), 999.0)
    assert on_hello(failed, 1, 4001) is failed
    assert on_probe(failed, 1, GOOD) is failed
    assert on_time(failed, 9999.0) is failed
