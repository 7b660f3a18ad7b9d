"""Serves `/proxy/ID/`: HTTP requests to a shell or a notebook, through a tunnel to its socket.

ASGI middleware, before authentication of our API: the path has a token of its own, and answers of a task are no answers
of the gateway. `upgrade.py` carries connections that leave HTTP, such as WebSockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

import h11
import structlog
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline.domain.experiment import Experiment
from gangline.errors import Effect, ErrorKind, GanglineError, not_found, unavailable
from services.common.concurrency import first_of
from services.common.server import Principal
from services.gateway.http.problem import problem_response
from services.gateway.http.tunnel import proxy_rule
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import UseCases
from services.gateway.usecase.shared.task_secret import PROXY_SECONDS
from services.gateway.usecase.shared.tunnel_table import AdmittedTunnel

# The address that `det notebook start` opens in a browser: a page of Determined's web interface.
_INTERACTIVE = "/det/interactive/"
_SERVICE_ADDRESS = "serviceAddr="
# Of an answer's head.
_MAX_HEAD_BYTES = 64 << 10

log = structlog.get_logger(__name__)


class Proxy:
    def __init__(self, app: ASGIApp, usecases: UseCases, authenticator: Authenticator) -> None:
        self._app = app
        self._usecases = usecases
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith((proxy_rule.PREFIX, _INTERACTIVE)):
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def note_begin(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            if scope["path"].startswith(_INTERACTIVE):
                await _redirect_interactive(scope)(scope, receive, send)
                return
            await self._serve(scope, receive, note_begin)
        except GanglineError as error:
            if is_begun:
                # The server closes the connection, so the browser sees a body that is cut off.
                log.info("an answer of a task was cut off", reason=error.message)
                return
            status = HTTPStatus.BAD_GATEWAY if error.kind is ErrorKind.UNAVAILABLE else None
            response = problem_response(error, status=status)
            del response.headers["www-authenticate"]
            await response(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = proxy_rule.parse_target(scope["path"])
        if target is None:
            raise not_found("task.not_found", "this address names no task; list them with: gangline notebook list")
        token, query = proxy_rule.take_token(scope["query_string"].decode("latin-1"))
        if token and scope["method"] in ("GET", "HEAD"):
            # The token moves into a cookie, so that it stays in no history and reaches no page of the task.
            self._usecases.open.task_proofs.identify(token, target.experiment_id)
            address = f"{target.base}{target.rest.removeprefix('/')}" + (f"?{query}" if query else "")
            response = RedirectResponse(address, 303, {"referrer-policy": "no-referrer", "cache-control": "no-store"})
            cookie = self._cookie(token, target, scope)
            response.raw_headers.append((b"set-cookie", cookie))
            await response(scope, receive, send)
            return
        principal, seconds_left = authenticate(self._usecases, self._authenticator, scope, target)
        tunnels = self._usecases.of(principal).tunnels
        experiment = tunnels.find(target.experiment_id)
        # The server keeps connections of admitted callers.
        scope.setdefault("state", {})["principal"] = principal

        def admit() -> None:
            caller, _ = authenticate(self._usecases, self._authenticator, scope, target)
            self._usecases.of(caller).tunnels.find(target.experiment_id)

        cookie = b""
        if 0 < seconds_left < PROXY_SECONDS * proxy_rule.RENEWAL_SHARE:
            fresh = tunnels.browser_token(target.experiment_id)
            cookie = self._cookie(fresh, target, scope)
        opening = await self._usecases.tunnels.open(experiment)
        with opening as opened, self._authenticator.streams.watched(admit, lambda _: opened.close()):
            tunnel = AdmittedTunnel(opened, admit)
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            exchange = _Exchange(scope, tunnel, target, experiment, cookie, connection)
            await exchange.run(receive, send)

    def _cookie(self, token: str, target: proxy_rule.ProxyTarget, scope: Scope) -> bytes:
        cluster_id = self._usecases.open.cluster.identify()
        is_secure = scope["scheme"] == "https"
        return proxy_rule.own_cookie(token, cluster_id, target, PROXY_SECONDS, is_secure=is_secure)


def authenticate(
    usecases: UseCases, authenticator: Authenticator, scope: Scope, target: proxy_rule.ProxyTarget
) -> tuple[Principal, float]:
    """Returns the caller, and for how long the cookie is valid, 0 for another proof. Raises GanglineError `auth.*`."""
    kind, _, bearer = Headers(scope=scope).get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return authenticator.identify(bearer.strip()), 0
    cookie = proxy_rule.cookie_of(scope["headers"], usecases.open.cluster.identify())
    found = usecases.open.task_proofs.identify(cookie, target.experiment_id)
    is_safe = scope["method"] in ("GET", "HEAD", "OPTIONS") and scope.get("is_upgrade") is not True
    if not is_safe and proxy_rule.is_of_other_site(scope["headers"]):
        raise GanglineError("auth.other_site", "a page of another site may not use this task", ErrorKind.FORBIDDEN)
    return found


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request to a task and its answer."""

    scope: Scope
    tunnel: AdmittedTunnel
    target: proxy_rule.ProxyTarget
    experiment: Experiment
    cookie: bytes  # the gateway's own cookie, which the answer sets; empty for none
    connection: h11.Connection

    async def run(self, receive: Receive, send: Send) -> None:
        """Returns when the task has answered, or when the browser has gone."""
        await self._ask(receive)
        await first_of(self._answer(send), _disconnected(receive))

    async def _ask(self, receive: Receive) -> None:
        given = Headers(scope=self.scope)
        headers = proxy_rule.request_headers(self.scope["headers"])
        if "content-length" in given:
            headers.append((b"content-length", given["content-length"].encode("latin-1")))
        elif "transfer-encoding" in given:
            headers.append((b"transfer-encoding", b"chunked"))
        query = self.scope["query_string"]
        address = self.scope["raw_path"] + (b"?" + query if query else b"")
        try:
            await self._send(h11.Request(method=self.scope["method"], target=address, headers=headers))
            async for body in _body(receive):
                await self._send(h11.Data(data=body))
            await self._send(h11.EndOfMessage())
        except (h11.ProtocolError, ConnectionError) as error:
            raise self._no_answer(str(error)) from error

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        await self.tunnel.write(self.connection.send(event) or b"")

    async def _next_event(self) -> h11.Event | None:
        """Returns the next event of the answer; None when the task has closed the connection."""
        while True:
            try:
                event = self.connection.next_event()
            except h11.ProtocolError as error:
                raise self._no_answer(str(error)) from error
            if isinstance(event, h11.Event):
                return None if isinstance(event, h11.ConnectionClosed) else event
            if self.connection.their_state in (h11.CLOSED, h11.ERROR):
                return None
            self.connection.receive_data(await self.tunnel.read())

    async def _answer(self, send: Send) -> None:
        answer = await self._next_event()
        if not isinstance(answer, h11.Response):
            raise self._no_answer("it ended first")
        host = Headers(scope=self.scope).get("host", "").encode("latin-1")
        is_https = self.scope["scheme"] == "https"
        headers = proxy_rule.response_headers(answer.headers.raw_items(), self.target, host, is_https=is_https)
        headers += [(b"set-cookie", self.cookie)] if self.cookie else []
        self.scope.setdefault("state", {})["is_of_task"] = True
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise self._no_answer("it ended in the middle of its answer")
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _no_answer(self, why: str) -> GanglineError:
        kind = (self.experiment.task_kind or "task").lower()
        text = f"{kind} {self.experiment.id} gave no whole answer to this request: {why}"
        return unavailable("task.no_answer", text, Effect.UNKNOWN)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the browser has gone")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


def _redirect_interactive(scope: Scope) -> Response:
    """Sends a browser that Determined's client has opened to the task itself. The address ends with that of a page that
    waits, which names it. Raises GanglineError `task.not_found`."""
    text = unquote(unquote(scope["raw_path"].decode("latin-1")))
    address = text.partition(_SERVICE_ADDRESS)[2]
    if not address.startswith(proxy_rule.PREFIX) or "\\" in address:
        raise not_found("task.not_found", "this address names no task; list them with: gangline notebook list")
    return RedirectResponse(address, 303, {"cache-control": "no-store"})
