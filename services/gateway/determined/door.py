"""Tells requests of Determined's client from our own, before anything else looks at them.

Its client opens a session by Determined's login, or makes a token, and the tokens that it gets are of a kind of their
own. So a request with such a token, and the few calls that come before one, belong to Determined's API; every other
request is ours.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gangline.errors import GanglineError
from services.common.access.security import is_of_determined
from services.gateway.determined.determined_app import build_determined_app, error_response
from services.gateway.determined.user import EITHER_ROUTES, OPEN_ROUTES
from services.gateway.http.admission import AdmittedAnswer, check_body, note_refused
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import UseCases

_OPEN = frozenset((method, path) for method, path, _ in OPEN_ROUTES)
LOGIN = "POST", "/api/v1/auth/login"
# Most bytes of a body whose caller has no session: a name and a hashed password.
MAX_OPEN_BYTES = 16 << 10
# Without a session, ours would refuse these.
_EITHER = frozenset((method, path) for method, path, _ in EITHER_ROUTES)


class Door:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, usecases: UseCases, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator
        self._logins = usecases.open.logins
        self._trail = usecases.trail
        self._determined = build_determined_app(usecases, authenticator)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind, _, token = headers.get("authorization", "").partition(" ")
        is_session = kind.lower() == "bearer" and is_of_determined(token.strip())
        place = scope["method"], scope["path"]
        if not is_session and place not in _OPEN and (token or place not in _EITHER):
            await self._app(scope, receive, send)
            return
        try:
            if is_session and place not in _OPEN:
                state = scope.setdefault("state", {})
                state["principal"], state["token"] = self._authenticator.identify(token.strip()), token.strip()
                check_body(scope)
            else:
                # Little is read of a caller without a session, and nothing once it has tried too many passwords.
                check_body(scope, MAX_OPEN_BYTES)
                if place == LOGIN:
                    self._logins.check_address(scope["client"][0] if scope.get("client") else "")
        except GanglineError as error:
            note_refused(self._trail, "determined", scope, error)
            await error_response(error)(scope, receive, send)
            return
        if is_session and place not in _OPEN:
            with AdmittedAnswer(send, self._authenticator, token.strip()) as admitted:
                await self._determined(scope, receive, admitted)
            return
        await self._determined(scope, receive, send)
