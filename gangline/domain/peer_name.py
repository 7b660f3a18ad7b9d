"""PURE: the names of the cluster's own programs in certificates. A name carries the role of its program.

A certificate has `scheduler.CLUSTER`, `gateway.CLUSTER` or `agent.ID.CLUSTER` among its DNS names. A peer that connects
compares the name with the role that it expects, so a certificate is good for one role only. An agent's id may contain
dots, so the cluster is one word without dots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gangline.errors import invalid

SCHEDULER, GATEWAY, AGENT = "scheduler", "gateway", "agent"
ROLES = (SCHEDULER, GATEWAY, AGENT)
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
# As the agent's own setting has it.
_AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class PeerName:
    """The name of one program, or of the programs of one role. agent_id: of an agent, else empty."""

    role: str
    cluster: str
    agent_id: str = ""

    def __str__(self) -> str:
        return ".".join(filter(None, (self.role, self.agent_id, self.cluster)))

    @property
    def file_stem(self) -> str:
        """Returns the beginning of the names of its files."""
        return f"{AGENT}-{self.agent_id}" if self.role == AGENT else self.role


def make_peer_name(role: str, cluster: str, agent_id: str = "") -> PeerName:
    """Checks the parts of a name. Raises GanglineError `certs.role`, `certs.cluster` and `certs.agent`."""
    if role not in ROLES:
        raise invalid("certs.role", f"{role!r} is no role of a service; give one of {', '.join(ROLES)}")
    check_cluster(cluster)
    if role != AGENT and agent_id:
        raise invalid("certs.agent", f"a {role} has no name of its own; leave {agent_id!r} out")
    if role == AGENT and not _AGENT_ID.fullmatch(agent_id):
        raise invalid(
            "certs.agent",
            f"{agent_id!r} is no id of an agent; an id has letters, digits, '.', '_' and '-' only, 63 at most, and "
            "begins with no sign",
        )
    return PeerName(role, cluster, agent_id)


def check_cluster(cluster: str) -> None:
    """Raises GanglineError `certs.cluster`."""
    if not _CLUSTER.fullmatch(cluster):
        raise invalid(
            "certs.cluster",
            f"{cluster!r} is no name of a cluster; use small letters, digits and '-', 40 at most, such as lab",
        )


def parse_peer_name(text: str) -> PeerName | None:
    """Returns the name that a text is; None for the name of a host."""
    role, _, rest = text.partition(".")
    if role in (SCHEDULER, GATEWAY) and _CLUSTER.fullmatch(rest):
        return PeerName(role, rest)
    agent_id, _, cluster = rest.rpartition(".")
    if role == AGENT and _AGENT_ID.fullmatch(agent_id) and _CLUSTER.fullmatch(cluster):
        return PeerName(role, cluster, agent_id)
    return None


def parse_peer_names(texts: Iterable[str]) -> tuple[PeerName, ...]:
    """Returns those of the texts that are names of programs."""
    return tuple(name for name in map(parse_peer_name, texts) if name is not None)
