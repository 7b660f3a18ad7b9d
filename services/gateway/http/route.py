"""What the routers have in common: how a request's JSON is parsed, and what the description says of errors.

The route class parses outside of the event loop, and bounds the number of values. A parser written in C keeps Python's
global lock until it is done, so a thread alone would not keep the gateway answering. The number of values is therefore
bounded before the parser starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

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

        async def run(request: Request) -> Response:
            if need is not Need.OPEN:
                bundle_of(request).check_call(need, request.state.principal)
            return await handle(_Request(request.scope, request.receive))

        return run


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
