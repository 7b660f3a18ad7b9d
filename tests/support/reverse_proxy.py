"""A reverse proxy for HTTP as an operator may put in front of a gateway: below a path of its own, over TLS or not.

It passes on what comes below its path, without the path, in pieces as they come. It tells the gateway nothing but
X-Forwarded-For and X-Forwarded-Proto.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.support.gateway import NO_TLS
from tests.support.wait import until_sync

_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"})


class _App:
    def __init__(self, target: str, path: str, scheme: str, asked: list[str]) -> None:
        self._target, self._path, self._scheme, self._asked = target, path, scheme, asked
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        path = scope["raw_path"].decode("latin-1")
        self._asked.append(path)
        if not path.startswith(self._path):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"nothing is here"})
            return
        body, is_open = b"", True
        while is_open:
            message = await receive()
            body += message.get("body", b"")
            is_open = message.get("more_body", False)
        self._client = self._client or httpx.AsyncClient(
            timeout=None, verify=NO_TLS, limits=httpx.Limits(max_connections=None)
        )
        headers = [pair for pair in scope["headers"] if pair[0] not in _HOP_BY_HOP]
        headers += [(b"x-forwarded-for", scope["client"][0].encode()), (b"x-forwarded-proto", self._scheme.encode())]
        query = scope["query_string"].decode("latin-1")
        url = f"{self._target}/{path.removeprefix(self._path)}" + (f"?{query}" if query else "")
        request = self._client.build_request(scope["method"], url, headers=headers, content=body)
        answer = await self._client.send(request, stream=True)
        try:
            kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP_BY_HOP]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


@contextmanager
def running_reverse_proxy(target: str, path: str, tls_folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yields the address of the page, and the paths that were asked for. target: the gateway's URL. path: with a slash
    at both ends. tls_folder: where to make a certificate; None for plain HTTP."""
    scheme, asked, files = "http", list[str](), dict[str, Any]()
    if tls_folder is not None:
        scheme = "https"
        key, certificate = tls_folder / "key.pem", tls_folder / "certificate.pem"
        words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout {key} -out {certificate}"
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        files = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    app = _App(target, path, scheme, asked)
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1, **files)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until_sync(lambda: server.started, "the proxy listening")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{scheme}://127.0.0.1:{port}{path}", asked
    finally:
        server.should_exit = True
        thread.join()
