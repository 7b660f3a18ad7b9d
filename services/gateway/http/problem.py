"""Errors as problem documents (RFC 9457), for every kind of exception."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from gangline.config.complaint import say_mistake
from gangline.errors import Effect, ErrorKind, GanglineError, invalid, say_effect
from services.gateway.http.model import Problem

STATUS_BY_KIND = {
    ErrorKind.INVALID: HTTPStatus.BAD_REQUEST,
    ErrorKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorKind.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    ErrorKind.CONFLICT: HTTPStatus.CONFLICT,
    ErrorKind.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    ErrorKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorKind.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorKind.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorKind.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def problem_response(
    error: GanglineError, *, is_change: bool = False, status: HTTPStatus | None = None
) -> JSONResponse:
    """Builds the answer. is_change: the answer also states the known effect of the call. status: None for that of the
    error's kind."""
    status = status or STATUS_BY_KIND[error.kind]
    # Basic beside Bearer makes a browser ask the user for the token.
    headers = {"WWW-Authenticate": 'Bearer, Basic realm="gangline"'} if status is HTTPStatus.UNAUTHORIZED else None
    problem = _problem(status, error.code, error.message)
    if is_change:
        problem.effect, problem.detail = error.effect, say_effect(error)
        if error.effect is Effect.UNKNOWN:
            problem.requestId = error.request_id or None
            how = f"with the requestId {error.request_id}" if error.request_id else "as it is"
            problem.detail += f"; send it again {how}, so that nothing is done twice"
    return _respond(problem, headers)


def add_problem_handlers(app: FastAPI) -> None:
    app.add_exception_handler(GanglineError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GanglineError)
    return problem_response(error, is_change=is_changing(request.method))


async def _on_validation(_: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, RequestValidationError)
    first = failure.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    return problem_response(invalid("request.invalid", f"{path}: {say_mistake(first)}"))


async def _on_http(request: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, HTTPException)
    status = HTTPStatus(failure.status_code)
    code = {404: "request.no_route", 405: "request.method"}.get(status, "request.refused")
    detail = f"{request.method} {request.url.path}: {failure.detail}; see /docs"
    headers = {"Allow": _allowed(request)} if status is HTTPStatus.METHOD_NOT_ALLOWED else failure.headers
    return _respond(_problem(status, code, detail), headers)


async def on_disconnect(_: Request, __: Exception) -> Response:
    """Answers a caller that has gone in the middle of its body: it gets nothing, and the log says nothing."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def _allowed(request: Request) -> str:
    """Returns the methods of all routes of this path; the router names those of the first one alone."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))


async def _on_bug(request: Request, failure: Exception) -> JSONResponse:
    return problem_response(bug_error(request, failure), is_change=is_changing(request.method))


def bug_error(request: Request, failure: Exception) -> GanglineError:
    """Returns what a caller learns of a bug: the place to look. The server logs the traceback."""
    detail = f"{request.method} {request.url.path} failed: {type(failure).__name__}; see the gateway's log"
    return GanglineError("http.internal", detail, ErrorKind.INTERNAL)


def is_changing(method: str) -> bool:
    return method not in ("GET", "HEAD")


def _problem(status: HTTPStatus, code: str, detail: str) -> Problem:
    # Exceptions of libraries may quote a caller's input; the detail stays one line of characters that JSON can hold.
    detail = GanglineError(code, detail).message
    return Problem(
        type=f"urn:gangline:error:{code}", title=status.phrase, status=status.value, detail=detail, code=code
    )


def _respond(problem: Problem, headers: object = None) -> JSONResponse:
    return JSONResponse(
        problem.model_dump(exclude_none=True, mode="json"),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=headers if isinstance(headers, dict) else None,
    )
