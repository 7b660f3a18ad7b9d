"""Admits or refuses a request before any of its body is read.

Every path except OPEN_PATHS needs a token. A browser cannot send a bearer token when a user types an address, so reads
also accept the token as the password of HTTP Basic. Changes do not, because browsers repeat Basic credentials on
requests that other sites make.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline.errors import GanglineError, invalid
from services.common.archive import MAX_ARCHIVE_BYTES, too_large
from services.common.server import Principal
from services.gateway.http.problem import is_changing, problem_response
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import OpenCases, UseCases, UserCases

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/prom/http-sd"})
# The sender of an answer that has ended is cancelled in this time.
_END_SECONDS = 5.0
# Below this path alone, bodies are read in pieces.
_UPLOADS = "/api/v1/code/"
# Bodies that bring code.
_SUBMITS = frozenset(f"/api/v1/{name}" for name in ("experiments", "commands", "shells", "notebooks"))
# Most bytes of a body that is neither an archive nor a submission.
MAX_BODY_BYTES = 1 << 20
# An archive of the largest size in base64, plus its configuration.
MAX_SUBMIT_BYTES = MAX_ARCHIVE_BYTES * 4 // 3 + MAX_BODY_BYTES


class Admission:
    """Authenticates requests as ASGI middleware; puts the principal into the request's state."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        """Authenticates requests as ASGI middleware; puts the principal into the request's state."""
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                token = self._admit(scope)
            except GanglineError as error:
                await problem_response(error, is_change=is_changing(scope["method"]))(scope, receive, send)
                return
            send = while_admitted(send, self._authenticator, token)
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        is_reading = scope["method"] in ("GET", "HEAD") and not _is_of_page(headers, scope["path"])
        token = _find_token(headers.get("authorization", ""), is_reading=is_reading)
        scope.setdefault("state", {})["principal"] = self._authenticator.identify(token)
        check_body(scope)
        return token


def while_admitted(send: Send, authenticator: Authenticator, token: str | None) -> Send:
    """Returns a `send` that ends an answer in parts when its caller's token ends: the next part is not sent."""
    is_begun = False

    async def send_or_end(message: Message) -> None:
        nonlocal is_begun
        if message["type"] == "http.response.body":
            try:
                # An answer of one part was decided when the request was admitted, and may be what ended the token.
                if is_begun:
                    authenticator.identify(token)
            except GanglineError:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                # The server tells the sender of the end of the answer, which cancels it.
                await asyncio.sleep(_END_SECONDS)
                raise OSError("the answer has ended") from None
            is_begun = True
        await send(message)

    return send_or_end


def _is_of_page(headers: Headers, path: str) -> bool:
    """Whether a page made the request, and not a user who typed the address. A task's pages have the gateway's origin,
    and a browser adds its Basic credentials to their requests. Only our page of the API's description needs them."""
    return headers.get("sec-fetch-site", "none") != "none" and path != "/openapi.json"


def check_body(scope: Scope, most: int = MAX_BODY_BYTES) -> None:
    """Refuses a body that is too long, or of an unknown length, before it is read. most: bytes of a body that is no
    archive and no submission. Raises GanglineError `request.*`."""
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and not scope["path"].startswith(_UPLOADS):
        # Such a body is read into memory as a whole, so its size must be known first.
        raise invalid("request.no_length", "send this body with Content-Length instead of in chunks")
    _check_length(scope["path"], headers.get("content-length", "0"), most)


def _check_length(path: str, length: str, most: int) -> None:
    """Refuses a body that is too long by its Content-Length. uvicorn has refused a length that is no number."""
    is_longer = functools.partial(_is_longer, length)
    if path.startswith(_UPLOADS):
        if is_longer(MAX_ARCHIVE_BYTES):
            raise too_large("too much even when packed")
    elif path in _SUBMITS:
        if is_longer(MAX_SUBMIT_BYTES):
            raise too_large("too much even when packed")
    elif is_longer(most):
        raise invalid("request.too_large", f"the body has {length[:20]} bytes, at most {most} are read here; send less")


def _is_longer(length: str, most: int) -> bool:
    return len(length.lstrip("0")) > len(str(most)) or int(length) > most


# The number of digits is compared first, because int() of a very long text is slow and limited.
def _find_token(header: str, *, is_reading: bool) -> str | None:
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic" and is_reading:
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


# Coroutines, because FastAPI calls a plain function in a thread, and a request would wait for two of them.
async def _cases(request: Request) -> UserCases:
    return _usecases_of(request).of(_principal_of(request))


async def _keyed_cases(
    request: Request, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
) -> UserCases:
    return _usecases_of(request).of(_principal_of(request), key or None)


async def _open_cases(request: Request) -> OpenCases:
    return _usecases_of(request).open


def _usecases_of(request: Request) -> UseCases:
    usecases = request.app.state.usecases
    assert isinstance(usecases, UseCases)
    return usecases


def _principal_of(request: Request) -> Principal:
    principal = request.state.principal
    assert isinstance(principal, Principal)
    return principal


# The use cases of the request's caller. Each of its changes gets a new request id.
Cases = Annotated[UserCases, Depends(_cases)]
# The same for a route whose change takes its request id from the header Idempotency-Key.
KeyedCases = Annotated[UserCases, Depends(_keyed_cases)]
# The use cases of a route in OPEN_PATHS, which has no caller.
Open = Annotated[OpenCases, Depends(_open_cases)]
