"""One call of Determined's client: who calls, what it sends, and the forms that all answers share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from starlette.datastructures import QueryParams

from gangline.errors import invalid
from services.gateway.determined.values import Json, pagination, to_number
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import OpenCases, UserCases

Lines = AsyncIterator[Json]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of Determined's client that needs no session."""

    open: OpenCases
    authenticator: Authenticator
    body: Json
    peer: str  # address of the caller

    def text(self, name: str) -> str:
        """Returns a text of the body; empty when it is absent or null. Raises GanglineError `request.invalid`."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid("request.invalid", f"{name} is {type(value).__name__}, and should be a text")
        return value or ""


@dataclass(frozen=True, slots=True)
class Call(OpenCall):
    """A call of Determined's client in a session. The client names no request ids, and does not repeat its changes."""

    cases: UserCases
    path: Mapping[str, str]  # parts of the path by their names
    query: QueryParams
    token: str

    def number(self, name: str) -> int:
        """Returns a part of the path that is an id. Raises GanglineError `request.id`."""
        return to_number(self.path[name], name)

    def count(self, name: str) -> int:
        """Returns a parameter that counts; 0 when it is absent or negative, which Determined's client sends for "all"
        and "none"."""
        text = self.query.get(name, "")
        return max(0, to_number(text, name)) if text else 0

    def is_set(self, name: str) -> bool | None:
        """Returns a parameter that is true or false; None when it is absent."""
        text = self.query.get(name, "").lower()
        return None if not text else text == "true"


Handler = Callable[[Call], Awaitable[Json] | Lines]
# Method, path below the address, and what answers.
Routes = Sequence[tuple[str, str, Handler]]
OpenRoutes = Sequence[tuple[str, str, Callable[[OpenCall], Awaitable[Json]]]]


def page_of(entries: Sequence[T], call: Call) -> tuple[list[T], Json]:
    """Returns the part of the list that the caller asks for, and its `pagination`."""
    offset, limit = call.count("offset"), call.count("limit")
    shown = list(entries[offset : offset + limit if limit else None])
    return shown, pagination(offset, limit, len(shown), len(entries))


def instant(seconds: float) -> str | None:
    """Returns a time as Determined writes it; None for 0, which stands for no time."""
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def start_instant(seconds: float) -> str:
    """Returns a time that Determined's client cannot do without."""
    return instant(seconds) or "1970-01-01T00:00:00.000Z"
