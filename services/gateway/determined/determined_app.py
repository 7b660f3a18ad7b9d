"""The application that answers Determined's client, made from the tables of routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gangline.errors import GanglineError, invalid
from services.common.concurrency import first_of
from services.common.server import Principal
from services.gateway.audit.action import RECORDED_OF_DETERMINED
from services.gateway.determined import agent, checkpoint, experiment, project, retention, task, token, trial, user
from services.gateway.determined.call import Call, Handler, Lines, OpenCall, OpenRoutes, Routes
from services.gateway.determined.lacking_call import lacking
from services.gateway.determined.values import Json
from services.gateway.http.problem import STATUS_BY_KIND, bug_error, on_disconnect
from services.gateway.http.route import note_forbidden, open_attempt
from services.gateway.mirror.access_table import NEED_BY_DETERMINED_ROUTE
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import UseCases, UserCases
from services.gateway.usecase.shared.following import begin
from services.gateway.usecase.shared.parsing import off_loop

log = structlog.get_logger(__name__)

_OPEN_TABLES: tuple[OpenRoutes, ...] = (user.OPEN_ROUTES, user.EITHER_ROUTES)
_TABLES: tuple[Routes, ...] = (
    user.ROUTES, experiment.ROUTES, trial.ROUTES, checkpoint.ROUTES, agent.ROUTES, project.ROUTES,
    retention.ROUTES,
    task.ROUTES,
    token.ROUTES,
)  # fmt: skip
# A larger body is read in a thread, so that it holds up no other caller.
_LARGE_BODY = 1 << 16


def build_determined_app(usecases: UseCases, authenticator: Authenticator) -> Starlette:
    """The caller has authenticated each request that needs a session, and put its principal into its state."""
    routes = [
        *(
            Route(path, _recorded(_open_endpoint(handler, usecases, authenticator), method, path), methods=[method])
            for table in _OPEN_TABLES
            for method, path, handler in table
        ),
        *(
            Route(
                path,
                _recorded(_endpoint((method, path), handler, usecases, authenticator), method, path),
                methods=[method],
            )
            for table in _TABLES
            for method, path, handler in table
        ),
    ]
    routes.append(Route("/checkpoints/{uuid}", _download(usecases), methods=["GET"]))
    handlers: Any = {
        GanglineError: _on_error,
        HTTPException: _on_http,
        ClientDisconnect: on_disconnect,
        Exception: _on_bug,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.usecases = usecases
    return app


def list_calls() -> list[tuple[str, str]]:
    """Returns method and path of every call, with the names of parameters in braces."""
    tables = (*_OPEN_TABLES, *_TABLES)
    return [*((method, path) for table in tables for method, path, _ in table), ("GET", "/checkpoints/{uuid}")]


def _recorded(endpoint: Any, method: str, path: str) -> Any:
    """Returns an endpoint that leaves the records of the audit log."""
    action = RECORDED_OF_DETERMINED.get((method, path))

    async def answer(request: Request) -> Response:
        if action is not None:
            with open_attempt(request, "determined", action):
                return cast("Response", await endpoint(request))
        try:
            return cast("Response", await endpoint(request))
        except GanglineError as error:
            note_forbidden(request, "determined", f"{method} {path}", error)
            raise

    return answer


def _open_endpoint(
    handler: Callable[[OpenCall], Awaitable[Json]], usecases: UseCases, authenticator: Authenticator
) -> Any:
    async def answer(request: Request) -> Response:
        call = OpenCall(usecases.open, authenticator, await _body(request), _peer_of(request))
        # A login may wait for others. One whose client has gone makes room.
        return JSONResponse(await first_of(handler(call), _disconnected(request)))

    return answer


def _endpoint(place: tuple[str, str], handler: Handler, usecases: UseCases, authenticator: Authenticator) -> Any:
    need = NEED_BY_DETERMINED_ROUTE.get(place)

    async def answer(request: Request) -> Response:
        usecases.check_call(need, _principal_of(request))
        call = Call(
            usecases.open,
            authenticator,
            await _body(request),
            _peer_of(request),
            cases=_cases_of(request, usecases),
            path=request.path_params,
            query=request.query_params,
            token=request.headers.get("authorization", "").partition(" ")[2].strip(),
        )
        given = handler(call)
        if isinstance(given, AsyncIterator):
            return StreamingResponse(_write(await begin(given)), media_type="application/json")
        return JSONResponse(await given)

    return answer


def _cases_of(request: Request, usecases: UseCases) -> UserCases:
    return usecases.of(_principal_of(request))


def _principal_of(request: Request) -> Principal:
    principal = getattr(request.state, "principal", None)
    assert isinstance(principal, Principal), "this call needs a session"
    return principal


def _peer_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _disconnected(request: Request) -> Any:
    """Raises ClientDisconnect when the client has gone. The whole body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def _body(request: Request) -> Json:
    """Returns the body. The client sends JSON without saying so, and null or nothing where it has no values."""
    content = await request.body()
    if not content.strip():
        return {}
    try:
        values = json.loads(content) if len(content) < _LARGE_BODY else await off_loop(json.loads, content)
    except (ValueError, RecursionError) as error:
        raise invalid("request.invalid", f"the body is no JSON ({error})") from error
    if not isinstance(values, dict | None):
        raise invalid("request.invalid", "the body is no JSON object")
    return values or {}


async def _write(results: Lines) -> AsyncIterator[bytes]:
    """Yields a line for each result. An error after the first one is a line of its own, as Determined has it."""
    try:
        async for result in results:
            yield _line({"result": result})
    except GanglineError as error:
        log.info("a stream ended early", reason=error.message)
        yield _line({"error": _error(error)})


def _line(content: Json) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _download(usecases: UseCases) -> Any:
    async def answer(request: Request) -> Response:
        chunks = checkpoint.archive(_cases_of(request, usecases), request.path_params["uuid"])
        return StreamingResponse(await begin(chunks), media_type="application/gzip")

    return answer


def error_response(error: GanglineError) -> JSONResponse:
    """Builds the answer. Determined's client tells 403, a wrong password, from 401, which asks for a new login."""
    return JSONResponse({"error": _error(error), "message": error.message}, STATUS_BY_KIND[error.kind].value)


def _error(error: GanglineError) -> Json:
    return {"code": error.code, "reason": error.kind.value, "message": error.message, "error": error.message}


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, GanglineError)
    return error_response(error)


async def _on_http(request: Request, _: Exception) -> Response:
    return error_response(lacking(request.method, request.url.path))


async def _on_bug(request: Request, failure: Exception) -> Response:
    return error_response(bug_error(request, failure))
