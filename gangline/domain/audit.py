"""PURE: records of the audit log, and the filter of its readers.

A record has no secret: its makers (`services/gateway/audit`) take over only fields that are named there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from gangline.errors import invalid

# Outcomes beside codes of errors.
DONE = "done"
REPEATED = "repeated"  # a request whose id had been recorded as done before
FAILED = "failed"  # of a filter alone: every outcome that is a code
DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
MAX_FILTER_LENGTH = 300


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Describes one change, one login or logout, or one attempt that was refused."""

    id: int  # 0 before it is stored
    at: float  # Unix seconds, by the gateway's clock
    actor_kind: str  # user, cluster, allocation or agent; anonymous before a login, and for an unknown token
    actor: str  # name of the user, id of the allocation or agent; empty for an anonymous caller
    credential: str  # such as "token 12" or "session", never the token
    address: str  # address of the caller
    surface: str  # grpc, http or determined
    action: str  # such as "experiment.kill", the same over all surfaces
    object_kind: str = ""  # such as "experiment"
    object_id: str = ""  # the object's id, or its name where it has none
    workspace: str = ""  # name of the workspace of the object; empty for objects outside of workspaces
    changes_json: str = "{}"  # by field, an object with the old and the new value; long values are cut
    outcome: str = DONE  # done, repeated, or the code of the error
    request_id: str = ""  # as the caller gave it; a new one for a change whose caller gave none

    @property
    def changes(self) -> dict[str, Any]:
        """Returns the changed fields as an object."""
        changes: dict[str, Any] = json.loads(self.changes_json or "{}")
        return changes


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects records. All given conditions have to hold."""

    user: str = ""  # name of the actor
    action: str = ""  # an action, or the part before its dot for all actions of this kind
    object: str = ""  # KIND, or KIND/ID
    since: float = 0.0  # Unix seconds; 0 for no limit
    until: float = 0.0
    outcome: str = ""  # done, repeated, failed for all errors, or a code
    address: str = ""


def check_audit_filter(wanted: AuditFilter, limit: int) -> None:
    """Raises GanglineError `audit.filter` or `request.limit`."""
    if not 0 <= limit <= MAX_LIMIT:
        raise invalid("request.limit", f"limit is {limit}; give 1 to {MAX_LIMIT}, or 0 for {DEFAULT_LIMIT}")
    for field in fields(wanted):
        value = getattr(wanted, field.name)
        if isinstance(value, str) and len(value) > MAX_FILTER_LENGTH:
            raise invalid("audit.filter", f"the filter {field.name} has more than {MAX_FILTER_LENGTH} characters")
    if wanted.until and wanted.until < wanted.since:
        raise invalid("audit.filter", "the period ends before it begins; exchange since and until")


def place_of(record: AuditRecord) -> str:
    """Returns the cursor behind a record, from which the next page begins."""
    return f"{record.at!r}:{record.id}"


def parse_place(text: str) -> tuple[float, int] | None:
    """Returns the time and the id in a cursor; None for an empty one. Raises GanglineError `audit.place`."""
    if not text:
        return None
    at, _, number = text.partition(":")
    try:
        return float(at[:40]), int(number[:20])
    except ValueError:
        raise invalid("audit.place", f"{text[:60]!r} is no place in the audit log; take one from an answer") from None
