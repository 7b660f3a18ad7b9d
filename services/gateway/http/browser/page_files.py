"""Serves the page: one document for all addresses of its own, and the files that the document names.

`make setup` builds the files into `static/` (scripts/build_page.py), and the wheel contains them. They are read when
the gateway starts. Names of files contain a hash of their content, so browsers keep them for ever. The document is
asked for again each time, with its ETag.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http.browser.cookie_rule import PAGE_POLICY

FOLDER = Path(__file__).parent / "static"
# The first part of each address that the page has; page/src/router.ts names the pages. None is one of the API's.
PAGES = frozenset({
    "", "sign-in", "enter", "experiments", "trials", "compare", "queue", "cluster", "workspaces", "projects", "tasks",
    "models", "checkpoints", "templates", "users", "tokens", "audit", "webhooks", "settings", "docs",
})  # fmt: skip
_ASSETS = "/assets/"
# The document's links are relative to this; each answer names the path up to the page's own.
_BASE = b'<base href="./">'
_UNBUILT = b"""<!doctype html>
<html lang="en"><head><base href="./"><meta charset="utf-8"><title>Gangline</title></head>
<body><h1>Gangline</h1>
<p>This gateway runs from a checkout whose page is not built. Build it with <code>make setup</code>, which needs access
to npm's registry, and start the gateway again. The commands and the HTTP API work without it.</p></body></html>
"""
_FOR_EVER = b"public, max-age=31536000, immutable"
_ASK_AGAIN = b"no-cache"


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes | None  # gzip; None where that is no shorter
    media_type: str


class PageFiles:
    """ASGI middleware. folder: where the built files are."""

    def __init__(self, app: ASGIApp, folder: Path = FOLDER) -> None:
        self._app = app
        self._files = _load(folder)
        index = folder / "index.html"
        self._index = index.read_bytes() if index.exists() else _UNBUILT
        self._document = cache(self._make_document)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            headers = {name.lower(): value for name, value in scope["headers"]}
            found = self._files.get(scope["path"])
            if found is not None:
                await _answer(send, scope["method"], found, headers, _FOR_EVER)
                return
            if is_of_page(scope["path"], headers):
                document = self._document(scope["path"].count("/") - 1)
                await _answer(send, scope["method"], document, headers, _ASK_AGAIN, is_document=True)
                return
        await self._app(scope, receive, send)

    def _make_document(self, depth: int) -> _File:
        base = b'<base href="%s">' % (b"../" * depth or b"./")
        return _File(self._index.replace(_BASE, base, 1), None, "text/html; charset=utf-8")


def is_of_page(path: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a browser asks for a document of the page. Requests with a token are for the API or for Determined's,
    which has some of the names. headers: by their names in lower case."""
    first = path[1:].partition("/")[0]
    if first not in PAGES or len(path) > 500 or (first == "" and path != "/"):
        return False
    accepts = headers.get(b"accept", b"")
    return b"text/html" in accepts and (b"authorization" not in headers or headers[b"authorization"][:5] == b"Basic")


async def _answer(
    send: Send, method: str, file: _File, headers: dict[bytes, bytes], caching: bytes, *, is_document: bool = False
) -> None:
    is_packed = file.packed is not None and _accepts_gzip(headers.get(b"accept-encoding", b""))
    body = file.packed if is_packed and file.packed is not None else file.body
    given = [
        (b"content-type", file.media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", caching),
        (b"vary", b"accept-encoding"),
        (b"content-security-policy", PAGE_POLICY),
    ]
    status = 200
    if is_packed:
        given.append((b"content-encoding", b"gzip"))
    if is_document:
        tag = b'"' + hashlib.sha256(body).hexdigest()[:16].encode() + b'"'
        given.append((b"etag", tag))
        if tag in (each.strip() for each in headers.get(b"if-none-match", b"").split(b",")):
            status, body, given = 304, b"", [pair for pair in given if pair[0] != b"content-length"]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})


def _accepts_gzip(header: bytes) -> bool:
    parts = (part.strip().partition(b";") for part in header.lower().split(b","))
    return any(name.strip() == b"gzip" and quality.strip() not in (b"q=0", b"q=0.0") for name, _, quality in parts)


def _load(folder: Path) -> dict[str, _File]:
    """Returns the files below `assets` by their paths in an address."""
    return {_ASSETS + path.name: _read(path) for path in _assets(folder)}


def _assets(folder: Path) -> Iterable[Path]:
    return sorted(path for path in (folder / "assets").glob("*") if path.suffix != ".gz")


def _read(path: Path) -> _File:
    packed = path.with_name(path.name + ".gz")
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    kind = "text/javascript" if path.suffix == ".js" else kind
    media_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    return _File(path.read_bytes(), packed.read_bytes() if packed.exists() else None, media_type)
