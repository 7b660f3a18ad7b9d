"""The checked callers: users, and trial runners with what delivers in their place.

Making one is the check, so code that has one needs no other check of its kind. The use cases of a request get theirs
when they are made (`services/gateway/usecase/bundle.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.id import describe_allocation, parse_allocation_id
from gangline.errors import ErrorKind, GanglineError, invalid
from services.common.server import Principal

# Request ids are stored with the experiment, so their length is bounded.
MAX_REQUEST_ID = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """A user, or the cluster's own token, which services and operators have. Making one raises GanglineError
    `auth.forbidden` for every other principal."""

    principal: Principal
    # The id of the change that the request makes. None if the request has none; then each of its changes gets a new id.
    request_id: str | None = None

    def __post_init__(self) -> None:
        if self.principal.kind not in ("user", "cluster"):
            raise _forbidden("the token of an allocation may only deliver its trial's records")

    @property
    def name(self) -> str:
        return self.principal.name

    @property
    def is_admin(self) -> bool:
        return self.principal.is_admin

    def owns(self, owner: str) -> bool:
        """Returns whether the caller has the rights of this owner, which administrators always have."""
        return self.is_admin or self.name == owner

    def check_admin(self, action: str) -> None:
        """Admits calls that affect all users' work. action: the attempted change. Raises GanglineError
        `auth.not_admin`."""
        if not self.is_admin:
            raise GanglineError(
                "auth.not_admin",
                f"{self.name} is no administrator, and only those may {action}; ask one of them",
                ErrorKind.FORBIDDEN,
            )

    def check_owner(self, owner: str, action: str) -> None:
        """Admits changes that take a user's work away. Raises GanglineError `auth.not_owner`."""
        if not self.owns(owner):
            raise GanglineError(
                "auth.not_owner",
                f"{self.name} may not {action}: only {owner} and administrators may; ask one of them",
                ErrorKind.FORBIDDEN,
            )

    def check_request_id(self) -> None:
        """Raises GanglineError `request.no_id` or `request.long_id`."""
        if self.request_id is None:
            return
        if not self.request_id:
            raise invalid(
                "request.no_id", "this change has no request id; make one up (a UUID), and repeat it on a retry"
            )
        if len(self.request_id) > MAX_REQUEST_ID:
            length = len(self.request_id)
            text = f"the request id has {length} characters; at most {MAX_REQUEST_ID} are stored, as a UUID's 36"
            raise invalid("request.long_id", text)


@dataclass(frozen=True, slots=True)
class Runner:
    """A trial runner, or the agent or the cluster that delivers in its place. Making one raises GanglineError
    `auth.forbidden` for every other principal."""

    principal: Principal

    def __post_init__(self) -> None:
        if self.principal.kind not in ("allocation", "agent", "cluster"):
            raise _forbidden(f"{self.principal.kind} {self.principal.name} may not deliver for a trial runner")

    @property
    def allocation_id(self) -> str:
        """Returns the allocation whose token the caller has; empty for an agent and for the cluster."""
        return self.principal.name if self.principal.kind == "allocation" else ""

    @property
    def agent_id(self) -> str:
        """Returns the agent whose token the caller has; empty for a trial runner and for the cluster."""
        return self.principal.name if self.principal.kind == "agent" else ""

    def check_trial(self, trial_id: str, allocation_id: str) -> None:
        """Admits a trial runner for its own allocation only. Raises GanglineError `auth.forbidden`."""
        is_own = self.allocation_id == allocation_id and parse_allocation_id(allocation_id)[0] == trial_id
        if self.allocation_id and not is_own:
            who = f"{self.principal.kind} {self.principal.name}"
            raise _forbidden(f"{who} may not deliver for {describe_allocation(allocation_id)}")


def _forbidden(text: str) -> GanglineError:
    return GanglineError("auth.forbidden", text, ErrorKind.FORBIDDEN)
