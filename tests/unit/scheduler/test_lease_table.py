"""When a member of a lost agent is given up, and which side of a cut network goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.resource import Agent
from gangline.domain.state import AgentState
from services.scheduler.agents.lease_table import (
    MAX_COMMITTEE,
    STOP_MARGIN_SECONDS,
    AttemptLeases,
    Grant,
    Leases,
    committee_of,
    is_majority,
)
from services.trial_runner.attempt_verdict import is_leader_cut_off

LEASE = 8.0
SILENCE = 300.0
WAIT = LEASE + STOP_MARGIN_SECONDS


def _leases() -> AttemptLeases:
    return AttemptLeases(LEASE, SILENCE, ["a1", "a2"], now=100.0)


def test_member_is_given_up_after_its_runners_lease_and_its_agents() -> None:
    leases = _leases()
    leases.renew("1.1.1", 0, ["a1", "a2"], 120.0)
    grant = leases.grant_of("1.1.1", 0)
    assert leases.end_of(grant, lost_at=118.0, has_majority=True) == 120.0 + WAIT
    # The agent was heard later than the runner: it may have started the runner since.
    assert leases.end_of(grant, lost_at=140.0, has_majority=True) == 140.0 - LEASE + WAIT
    assert leases.end_of(grant, lost_at=118.0, has_majority=False) == 120.0 + SILENCE


def test_without_a_grant_in_this_term_the_lease_counts_from_its_beginning() -> None:
    leases = _leases()
    leases.renew("1.1.1", 0, ["a1"], 120.0)
    assert leases.grant_of("1.1.1", 1).renewed_at == 100.0
    assert leases.grant_of("1.1.1", 1).committee == {"a1", "a2"}
    leases.forget("1.1.1")
    assert leases.grant_of("1.1.1", 0).renewed_at == 100.0


def test_silence_is_never_shorter_than_the_lease() -> None:
    leases = AttemptLeases(LEASE, 1.0, [], now=0.0)
    assert leases.end_of(leases.grant_of("1.1.1", 0), lost_at=8.0, has_majority=False) == WAIT


@pytest.mark.parametrize(
    ("num_heard", "num_members", "is_it"),
    [(0, 0, True), (0, 1, False), (1, 1, True), (0, 2, False), (1, 2, True), (1, 3, False), (2, 3, True)],
)
def test_the_leader_has_a_vote_of_its_own(num_heard: int, num_members: int, is_it: bool) -> None:
    assert is_majority(num_heard, num_members) is is_it


@given(st.data())
def test_never_both_sides_of_a_cut_go_on(data: st.DataObject) -> None:
    """However the agents divide into those that the leader hears, those that are deaf, and those that are down."""
    committee = [f"a{number}" for number in range(data.draw(st.integers(1, MAX_COMMITTEE)))]
    fates = {agent: data.draw(st.sampled_from(["heard", "deaf", "down"])) for agent in committee}
    own = data.draw(st.sampled_from([agent for agent in committee if fates[agent] != "heard"] or ["elsewhere"]))
    silence = {agent: LEASE if fate == "deaf" else 0.0 for agent, fate in fates.items() if fate != "down"}
    num_heard = sum(fate == "heard" for fate in fates.values())
    goes_on = is_leader_cut_off(committee, own, silence, LEASE)
    assert not (goes_on and is_majority(num_heard, len(committee)))


@given(st.integers(1, MAX_COMMITTEE))
def test_training_goes_on_where_no_agent_hears_the_leader(size: int) -> None:
    committee = [f"a{number}" for number in range(size)]
    assert is_leader_cut_off(committee, "a0", dict.fromkeys(committee[1:], LEASE), LEASE)


def test_an_agent_that_hears_the_leader_is_no_witness_of_its_end() -> None:
    assert not is_leader_cut_off(["a1", "a2"], "a1", {"a2": LEASE / 4}, LEASE)
    assert is_leader_cut_off(["a1", "a2"], "a1", {"a2": LEASE / 2}, LEASE)
    assert not is_leader_cut_off(["a1", "a2"], "a1", {}, LEASE)


def test_committee_is_of_live_agents_the_same_ones_each_time() -> None:
    racks = [f"r{rack}-{host:02}" for rack in range(4) for host in range(12)]
    agents = [Agent(agent_id) for agent_id in racks]
    chosen = [agent.id for agent in committee_of(agents)]
    assert chosen == [agent.id for agent in committee_of(reversed(agents))]
    assert len(chosen) == MAX_COMMITTEE
    # One rack that loses its power takes no majority along.
    assert max(sum(agent_id.startswith(f"r{rack}-") for agent_id in chosen) for rack in range(4)) <= MAX_COMMITTEE // 2
    lost = [replace(agent, state=AgentState.LOST) for agent in agents if agent.id == chosen[0]]
    assert chosen[0] not in [agent.id for agent in committee_of([*lost, *agents[1:]]) if agent in lost]


def test_an_agent_counts_once_it_was_heard_without_a_gap_for_longer_than_its_silence_could_excuse() -> None:
    leases = Leases(["a1"], LEASE, 0, now=0.0)
    assert not leases.is_steady("a1", 1.0)
    for beat in range(11):
        leases.renew("a1", float(beat))
    assert not leases.is_steady("a1", WAIT - 0.1)
    assert leases.is_steady("a1", 10.0)
    # It may have told a runner meanwhile that it does not hear the leader.
    assert not leases.is_steady("a1", 10.0 + LEASE * 3 / 8)
    leases.renew("a1", 10.0 + LEASE / 2)
    assert not leases.is_steady("a1", 10.0 + LEASE / 2)


def test_runners_that_could_not_be_answered_have_a_whole_lease_again() -> None:
    leases = _leases()
    leases.renew("1.1.1", 0, ["a1"], 120.0)
    leases.forgive(150.0)
    assert leases.grant_of("1.1.1", 0) == Grant(150.0, frozenset({"a1"}))
    assert leases.grant_of("9.1.1", 0).renewed_at == 150.0
