"""Admits or refuses a request before any of its body is read.

Every path except OPEN_PATHS needs a token. The page has it in the cookie of its session (`browser/cookie_rule.py`).
A login has none yet: little is read of it, and nothing once its address has tried too many passwords.

A browser cannot send a bearer token when a user types an address, so reads also accept the token as the password of
HTTP Basic. Changes do not, because browsers repeat Basic credentials on requests that other sites make.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
from contextlib import ExitStack
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline.errors import GanglineError, invalid
from services.common.archive import MAX_ARCHIVE_BYTES, too_large
from services.common.server import Principal
from services.gateway.audit.trail import AuditTrail
from services.gateway.http.browser.cookie_rule import PAGE_HEADER, check_page, session_of
from services.gateway.http.problem import is_changing, problem_response
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import OpenCases, UseCases, UserCases

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/prom/http-sd"})
SESSION_PATH = "/api/v1/session"
# Most bytes of a body whose caller has no token: a name and a password, or a key.
MAX_OPEN_BYTES = 16 << 10
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

    def __init__(self, app: ASGIApp, authenticator: Authenticator, usecases: UseCases) -> None:
        self._app = app
        self._authenticator = authenticator
        self._usecases = usecases

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                if (scope["method"], scope["path"]) == ("POST", SESSION_PATH):
                    self._admit_login(scope)
                    await self._app(scope, receive, send)
                    return
                token = self._admit(scope)
            except GanglineError as error:
                note_refused(self._usecases.trail, "http", scope, error)
                await _refuse(error, scope)(scope, receive, send)
                return
            with AdmittedAnswer(send, self._authenticator, token) as admitted:
                await self._app(scope, receive, admitted)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        is_reading = scope["method"] in ("GET", "HEAD") and not _is_of_page(headers)
        token = _find_token(headers.get("authorization", ""), is_reading=is_reading)
        if "authorization" not in headers:
            token = session_of(scope["method"], scope["headers"], self._usecases.open.cluster.identify())
        state = scope.setdefault("state", {})
        state["principal"], state["token"] = self._authenticator.identify(token), token
        check_body(scope)
        return token

    def _admit_login(self, scope: Scope) -> None:
        check_page({name.lower(): value.decode("latin-1") for name, value in scope["headers"]})
        check_body(scope, MAX_OPEN_BYTES)
        self._usecases.open.logins.check_address(scope["client"][0] if scope.get("client") else "")


def note_refused(trail: AuditTrail, surface: str, scope: Scope, error: GanglineError) -> None:
    """Records a request that was refused before its caller was known. Of its path a record has the beginning, which
    names the topic; the rest may be anything."""
    topic = "/".join(scope["path"].split("/")[:4])[:60]
    address = scope["client"][0] if scope.get("client") else ""
    trail.note_refused(surface, f"{scope['method'][:10]} {topic}", address, error)


def _refuse(error: GanglineError, scope: Scope) -> Response:
    response = problem_response(error, is_change=is_changing(scope["method"]))
    if PAGE_HEADER in Headers(scope=scope) and "www-authenticate" in response.headers:
        # A browser would ask for a token in a window of its own; the page asks for a login.
        del response.headers["www-authenticate"]
    return response


class AdmittedAnswer:
    """The context of a request, whose answer in parts ends when its caller's token ends: the next part is not sent, and
    an answer that waits for its next part is ended within two seconds."""

    def __init__(self, send: Send, authenticator: Authenticator, token: str | None) -> None:
        self._send = send
        self._authenticator = authenticator
        self._token = token
        self._stack = ExitStack()
        self._task = asyncio.current_task()
        self._is_begun = self._is_ended = self._is_left = self._is_cancelled = False
        self._ending: asyncio.Task[None] | None = None

    def __enter__(self) -> Send:
        return self._pass_on

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self._is_left = True
        self._stack.close()
        if not self._is_cancelled or not isinstance(error, asyncio.CancelledError):
            return False
        assert self._task is not None, "a request is served in a task"
        self._task.uncancel()
        return True

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._stack.enter_context(self._authenticator.watch(self._token, self._end))
        elif message["type"] == "http.response.body":
            if self._is_begun:
                self._check()
            elif not message.get("more_body"):
                # An answer of one part was decided when the request was admitted, and may be what ended the token.
                self._stack.close()
            self._is_begun = True
        if self._is_ended:
            # The server tells the sender of the end of the answer, which cancels it.
            await asyncio.sleep(_END_SECONDS)
            raise OSError("the answer has ended")
        await self._send(message)

    def _check(self) -> None:
        try:
            self._authenticator.identify(self._token)
        except GanglineError as error:
            self._end(error)

    def _end(self, _: GanglineError) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._ending = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        # A sender that waits for its next part does not hear of the end.
        if self._task is not None and not self._is_left:
            self._is_cancelled = True
            self._task.cancel()


def _is_of_page(headers: Headers) -> bool:
    """Whether a page made the request, and not a user who typed the address. A task's pages have the gateway's origin,
    and a browser adds its Basic credentials to their requests. Our own page has a session in their place."""
    return headers.get("sec-fetch-site", "none") != "none"


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
    return bundle_of(request).of(_principal_of(request))


async def _keyed_cases(
    request: Request, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
) -> UserCases:
    return bundle_of(request).of(_principal_of(request), key or None)


async def _open_cases(request: Request) -> OpenCases:
    return bundle_of(request).open


def bundle_of(request: Request) -> UseCases:
    """Returns the use cases of all callers, for the route of a login, which finds its caller itself."""
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
