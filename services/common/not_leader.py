"""PURE: the answer of a scheduler that does not lead. It names the leader for users and for programs."""

from __future__ import annotations

from gangline.errors import Effect, ErrorKind, GanglineError

NOT_LEADER_CODE = "scheduler.not_leader"


def not_leader(address: str = "", effect: Effect = Effect.NONE) -> GanglineError:
    """Builds the error of a standby, and of a leader whose term is over. The schedulers raise it; agents, trial runners
    and gateways continue with the address in its `leader_address`.

    address: "host:port" of the leader; empty when the caller knows none. effect: of the change that was asked for.
    """
    where = f"the leader is at {address}" if address else "no scheduler leads right now; try again"
    error = GanglineError(NOT_LEADER_CODE, f"this scheduler does not lead; {where}", ErrorKind.CONFLICT, effect)
    error.leader_address = address
    return error
