"""The two outermost parts of the application: ASGI middleware that sees the beginning of every answer.

`Measure` counts and times requests by their route. The label is the route, not the path, so that the number of labels
stays small. `Guard` completes the headers of answers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.browser.cookie_rule import guard_headers
from services.gateway.mirror import metrics


class _AnswerMiddleware(ABC):
    """Calls a function with the first message of each answer over HTTP, before it is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        on_start = self._begin(scope)

        async def send_seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                on_start(message)
            await send(message)

        await self._app(scope, receive, send_seen)

    @abstractmethod
    def _begin(self, scope: Scope) -> Callable[[Message], None]:
        """Returns the function for the answer to this request, which may change the message."""


class Measure(_AnswerMiddleware):
    """Measures requests as the outermost part."""

    def _begin(self, scope: Scope) -> Callable[[Message], None]:
        started = time.perf_counter()
        return lambda message: _count(scope, message["status"], time.perf_counter() - started)


class Guard(_AnswerMiddleware):
    """Completes the headers as the outermost part but one, so that errors have them, too. `tunnel/proxy.py` marks an
    answer of a task, which is left as it is."""

    def _begin(self, scope: Scope) -> Callable[[Message], None]:
        def complete(message: Message) -> None:
            if not scope.get("state", {}).get("is_of_task"):
                message["headers"] = guard_headers(list(message.get("headers", ())))

        return complete


def _count(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH") else "other"
    metrics.HTTP_REQUESTS.labels(method, route, str(status)).inc()
    metrics.HTTP_REQUEST_SECONDS.labels(method, route).observe(seconds)
