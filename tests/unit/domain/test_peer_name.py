"""The names in certificates: what is written is read back, and no name of one role reads as another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.peer_name import PeerName, make_peer_name, parse_peer_name

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
CLUSTERS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)


@given(IDS, CLUSTERS)
def test_agents_name_is_read_back(agent_id: str, cluster: str) -> None:
    name = make_peer_name("agent", cluster, agent_id)
    assert parse_peer_name(str(name)) == name


@given(IDS, CLUSTERS)
def test_no_id_makes_an_agent_a_service(agent_id: str, cluster: str) -> None:
    parsed = parse_peer_name(str(make_peer_name("agent", cluster, agent_id)))
    assert parsed is not None
    assert parsed.role == "agent"


@pytest.mark.parametrize(
    "text", ["", "lab", "gateway", "gateway.", "gateway.a.lab", "agent.lab", "agent..lab", "agent.a.Lab", "Gateway.lab"]
)
def test_names_of_hosts_are_no_names_of_services(text: str) -> None:
    assert parse_peer_name(text) is None


def test_services_have_the_role_and_the_cluster() -> None:
    assert parse_peer_name("scheduler.lab") == PeerName("scheduler", "lab")
    assert parse_peer_name("agent.gpu1.site.lab") == PeerName("agent", "lab", "gpu1.site")
