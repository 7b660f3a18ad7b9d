"""Opens attempts for the surfaces, and records what never becomes one: unknown tokens and forbidden reading calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gangline.domain.audit import AuditRecord
from gangline.errors import ErrorKind, GanglineError
from services.common.access.security import hash_token, is_of_determined, is_session_token
from services.common.server import Principal
from services.gateway.audit.action import READ, UNKNOWN_TOKEN
from services.gateway.audit.attempt import Attempt
from services.gateway.audit.change import write_changes
from services.gateway.audit.refusal_limit import OF_ACTORS, OF_ADDRESSES, RefusalLimit
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import Watched

_CREDENTIALS = {"allocation": "allocation token", "agent": "drain token", "cluster": "cluster token"}
# Refused logins that are bounded as unknown tokens are. LoginLimit bounds the others.
_BOUNDED_CODES = frozenset({"auth.too_many_logins"})


class AuditTrail:
    """write: takes each record at once, and never raises."""

    def __init__(self, mirror: Watched, write: Callable[[AuditRecord], None]) -> None:
        self._mirror = mirror
        self._write = write
        self._of_addresses = RefusalLimit(OF_ADDRESSES)
        self._of_actors = RefusalLimit(OF_ACTORS)

    def attempt(
        self,
        surface: str,
        action: str,
        principal: Principal,
        token: str | None,
        address: str,
        *,
        request_id: str = "",
        source: Any = None,
    ) -> Attempt:
        """Returns the context of a call whose caller is known, or who logs in."""
        is_anonymous = principal.kind == "anonymous"
        return Attempt(
            self._write,
            partial(self._take, principal, address),
            surface=surface,
            action=action,
            actor_kind=principal.kind,
            actor=principal.name,
            credential="" if is_anonymous else self.credential_of(principal, token),
            address=address,
            request_id=request_id,
            source=source,
        )

    def note_forbidden(
        self,
        error: BaseException,
        *,
        surface: str,
        call: str,
        principal: Principal,
        token: str | None,
        address: str,
    ) -> None:
        """Records a reading call that its caller may not make. Does nothing for other errors."""
        if isinstance(error, GanglineError) and error.kind is ErrorKind.FORBIDDEN:
            attempt = self.attempt(surface, READ, principal, token, address)
            attempt.name_object("call", call)
            attempt.finish(error)

    def note_refused(self, surface: str, call: str, address: str, error: BaseException) -> None:
        """Records a call that was refused before its caller was known. Does nothing for errors that are no refusal."""
        if not isinstance(error, GanglineError):
            return
        if error.kind not in (ErrorKind.UNAUTHENTICATED, ErrorKind.FORBIDDEN):
            return
        num_left_out = _count(self._of_addresses.take(address, time.monotonic()))
        if num_left_out is None:
            return
        changes = write_changes({}, {"attempts_left_out": num_left_out} if num_left_out else {})
        self._write(
            AuditRecord(
                0, time.time(), "anonymous", "", "", address, surface, UNKNOWN_TOKEN, "call", call,
                changes_json=changes, outcome=error.code,
            )
        )  # fmt: skip

    def credential_of(self, principal: Principal, token: str | None) -> str:
        """Returns what a record says of the caller's token: its id or its kind."""
        if principal.kind in _CREDENTIALS:
            return _CREDENTIALS[principal.kind]
        if not token:
            return "task cookie"
        if is_session_token(token):
            return "session of Determined's client" if is_of_determined(token) else "session"
        known = next(iter(self._mirror.state.tokens.of(hash_token(token))), None)
        return f"token {known.id}" if known is not None else "admin token"

    def _take(self, principal: Principal, address: str, outcome: str) -> int | None:
        """Returns what `RefusalLimit.take` returns for a refusal of this caller."""
        if principal.kind != "anonymous":
            return _count(self._of_actors.take(f"{principal.kind} {principal.name}", time.monotonic()))
        return _count(self._of_addresses.take(address, time.monotonic())) if outcome in _BOUNDED_CODES else 0


def _count(taken: int | None) -> int | None:
    if taken is None:
        metrics.AUDIT_LEFT_OUT.inc()
    return taken
