"""Checks which caller may call which method. Gateways and agents have the cluster's token, a trial runner the token of
its allocation.

Over TLS the name in the caller's certificate counts as well: gateways call for users, an agent for itself, and a trial
runner on a member of its allocation for this one. A token that was stolen is worth nothing without a certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gangline.domain.allocation import Allocation
from gangline.domain.id import describe_allocation
from gangline.domain.peer_name import AGENT, GATEWAY, PeerName
from gangline.errors import ErrorKind, GanglineError, unauthenticated
from services.common.access.security import check_allocation_token, is_allocation_token, is_same_token
from services.common.server import Authenticate, Principal, current_peers, current_principal


def authenticator(cluster_token: str) -> Authenticate:
    """Identifies the caller; `require_cluster` and `require_allocation` check its permissions."""

    async def authenticate(_method: str, token: str | None) -> Principal:
        if token is None:
            raise unauthenticated("security.no_token", "the call carries no token; check --cluster-token-file")
        if is_allocation_token(token):
            return Principal("allocation", check_allocation_token(cluster_token, token))
        if is_same_token(token, cluster_token):
            return Principal("cluster", "cluster", is_admin=True)
        raise unauthenticated(
            "security.bad_token", "the token is not this cluster's; do all services read the same --cluster-token-file?"
        )

    return authenticate


def require_cluster() -> None:
    """Allows a gateway, which calls for users."""
    _require_cluster_token()
    _require_peer(lambda peer: peer.role == GATEWAY, "a gateway")


def require_agent(agent_id: str | None = None) -> None:
    """Allows this agent to call. agent_id: None for any agent."""
    _require_cluster_token()
    _require_peer(_is_agent({agent_id} if agent_id is not None else None), _say_agent(agent_id))


def _require_cluster_token() -> None:
    if current_principal().kind != "cluster":
        raise GanglineError("security.forbidden", "only the cluster's own services may call this", ErrorKind.FORBIDDEN)


def require_allocation(allocation_id: str) -> None:
    """Allows a runner to call for its own allocation only."""
    caller = current_principal()
    if caller.kind != "allocation" or caller.name != allocation_id:
        raise GanglineError(
            "security.forbidden",
            f"this token does not speak for {describe_allocation(allocation_id)}",
            ErrorKind.FORBIDDEN,
        )
    _require_peer(_is_agent(None), _say_agent(None))


def require_member(allocation: Allocation) -> None:
    """Allows the runners on the agents of this allocation only. Called after `require_allocation`, where the record is
    known."""
    members = {member.agent_id for member in allocation.members}
    _require_peer(_is_agent(members), f"an agent of {describe_allocation(allocation.id)}")


def _is_agent(agent_ids: Collection[str | None] | None) -> Callable[[PeerName], bool]:
    return lambda peer: peer.role == AGENT and (agent_ids is None or peer.agent_id in agent_ids)


def _say_agent(agent_id: str | None) -> str:
    return f"agent {agent_id}" if agent_id else "an agent"


def _require_peer(is_right: Callable[[PeerName], bool], who: str) -> None:
    """Without TLS the token alone decides."""
    peers = current_peers()
    if peers is None or any(map(is_right, peers)):
        return
    names = ", ".join(map(str, peers)) or "no service of this cluster"
    raise GanglineError(
        "security.wrong_certificate",
        f"only {who} may call this, and the caller's certificate is of {names}; give it its own --tls-cert-file",
        ErrorKind.FORBIDDEN,
    )
