"""ASGI middleware that completes the headers of every answer which is not a task's."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.browser.cookie_rule import guard_headers


class Guard:
    """The outermost part but one, so that errors have the headers, too. `tunnel/proxy.py` marks an answer of a task,
    which is left as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start" and not scope.get("state", {}).get("is_of_task"):
                message["headers"] = guard_headers(list(message.get("headers", ())))
            await send(message)

        await self._app(scope, receive, send_guarded)
