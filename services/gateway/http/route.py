"""What the routers have in common: how a request's JSON is parsed, what the description says of errors, and the records
that changing requests leave in the audit log.

The route class parses outside of the event loop, and bounds the number of values. A parser written in C keeps Python's
global lock until it is done, so a thread alone would not keep the gateway answering. The number of values is therefore
bounded before the parser starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from gangline.errors import GanglineError
from services.common.server import Principal
from services.gateway.audit.action import RECORDED_ROUTES
from services.gateway.audit.attempt import Attempt
from services.gateway.audit.trail import AuditTrail
from services.gateway.http.admission import bundle_of
from services.gateway.http.model import Problem
from services.gateway.mirror.access_table import NEED_BY_ROUTE, Need
from services.gateway.usecase.shared.parsing import off_loop

# Text, such as an archive in base64, is parsed at a gigabyte a second; values at a million a second.
MAX_VALUES = 100_000
# For each router itself: the application takes over the routes as they are.
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Problem, "description": "A problem document"}}


class Route(APIRoute):
    """Checks the right that the table names before the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        # Each route has one method.
        need = NEED_BY_ROUTE.get((min(self.methods or ("",)), self.path))
        path = self.path.removeprefix("/api/v1")
        action_by_method = {method: RECORDED_ROUTES.get((method, path)) for method in self.methods or ()}

        async def answer(request: Request) -> Response:
            if need is not Need.OPEN:
                bundle_of(request).check_call(need, request.state.principal)
            return await handle(_Request(request.scope, request.receive))

        async def run(request: Request) -> Response:
            action = action_by_method.get(request.method)
            if action is not None:
                with open_attempt(request, "http", action):
                    return await answer(request)
            try:
                return await answer(request)
            except GanglineError as error:
                note_forbidden(request, "http", f"{request.method} {self.path}", error)
                raise

        return run


def open_attempt(request: Request, surface: str, action: str, source: Mapping[str, Any] | None = None) -> Attempt:
    """Returns the context of a call that leaves records of the audit log. source: names the object; None for the
    parameters of the path."""
    return trail_of(request).attempt(
        surface,
        action,
        *_caller_of(request),
        request_id=request.headers.get("idempotency-key", ""),
        source=request.path_params if source is None else source,
    )


def note_forbidden(request: Request, surface: str, call: str, error: GanglineError) -> None:
    """Records a reading call that its caller may not make."""
    principal, token, address = _caller_of(request)
    trail_of(request).note_forbidden(
        error, surface=surface, call=call, principal=principal, token=token, address=address
    )


def trail_of(request: Request) -> AuditTrail:
    trail = request.app.state.usecases.trail
    assert isinstance(trail, AuditTrail)
    return trail


def _caller_of(request: Request) -> tuple[Principal, str | None, str]:
    """Returns the caller, its token and its address. A login has no caller yet."""
    principal = getattr(request.state, "principal", None) or _ANYBODY
    address = request.client.host if request.client is not None else ""
    return principal, getattr(request.state, "token", None), address


_ANYBODY = Principal(kind="anonymous", name="")


class _Request(Request):
    async def json(self) -> Any:
        return await off_loop(parse_json, await self.body())


def parse_json(body: bytes) -> Any:
    """Parses the body. Raises HTTPException 400."""
    # An upper bound: marks inside of texts count as well.
    num_values = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if num_values > MAX_VALUES:
        raise HTTPException(400, f"the body has more than {MAX_VALUES} values; send less at once")
    try:
        return from_json(body)
    except ValueError as failure:
        place = re.search(r"line (\d+) column (\d+)", str(failure))
        where = f" at line {place[1]}, column {place[2]}" if place is not None else ""
        raise HTTPException(400, f"the body is no JSON document{where}; check quotes, commas and brackets") from failure
