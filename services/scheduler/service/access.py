"""Checks which caller may call which method. Gateways and agents have the cluster's token, a trial runner the token of
its allocation.
"""

from __future__ import annotations

from gangline.domain.id import describe_allocation
from gangline.errors import ErrorKind, GanglineError, unauthenticated
from services.common.access.security import check_allocation_token, is_allocation_token, is_same_token
from services.common.server import Authenticate, Principal, current_principal


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
