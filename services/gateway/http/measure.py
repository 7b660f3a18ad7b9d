"""Counts and times every HTTP request by its route, not its path, so that the number of labels stays small."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway import metric


class Measure:
    """Measures requests as the outermost ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def send_measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                _count(scope, message["status"], time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, send_measured)


def _count(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH") else "other"
    metric.HTTP_REQUESTS.labels(method, route, str(status)).inc()
    metric.HTTP_REQUEST_SECONDS.labels(method, route).observe(seconds)
