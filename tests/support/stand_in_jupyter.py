"""A program in the place of `jupyter lab`: it listens where it is told to, as Jupyter does, and answers what tests ask.

Below its base_url: `echo` answers with the request's head and body, `cookie` sets cookies and headers for the whole
origin, `endless` sends until the reader goes, `sent` says how many bytes of that went out, `half` breaks its answer
off, `page` is an empty page for a browser, `worker.js` a script that fetches what it is told to, `die` ends the
program. A request that asks for an upgrade gets one, and then its own bytes back.
"""

from __future__ import annotations

import asyncio
import os
import sys

_MOST_BYTES = 256 << 20
_COOKIES = (
    "Set-Cookie: a=1; Path=/\r\nSet-Cookie: gangline_proxy=stolen; Path=/\r\n"
    "Service-Worker-Allowed: /\r\nX-Accel-Redirect: /etc/x\r\n"
)
# A page of a hostile task would try to be of the gateway's page by this header (in _answer).
_FILES = {
    "page": ("text/html", "<!doctype html><title>Task</title><h1>Task</h1>"),
    "worker.js": (
        "text/javascript",
        "onmessage = (asked) => fetch(asked.data, { headers: { 'X-Gangline-Page': '1' } })"
        ".then((answer) => postMessage(answer.status), () => postMessage('refused'));",
    ),
}
num_sent = 0


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        await _answer(head, reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _answer(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global num_sent  # noqa: PLW0603 - the only state of this program
    line, *fields = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    path = line.split(" ")[1]
    name = path.removeprefix(base_url).partition("?")[0]
    if "upgrade" in headers:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    elif name == "endless":
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while num_sent < _MOST_BYTES:
            writer.write(b"x" * (1 << 16))
            await writer.drain()
            num_sent += 1 << 16
    elif name == "half":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
    elif name in _FILES:
        kind, content = _FILES[name]
        size = f"Content-Length: {len(content)}\r\nCross-Origin-Opener-Policy: same-origin\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{size}\r\n{content}".encode())
        await writer.drain()
    elif name == "die":
        os._exit(3)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        text = str(num_sent).encode() if name == "sent" else head.encode("latin-1") + body
        extra = _COOKIES if name == "cookie" else ""
        writer.write(f"HTTP/1.1 200 OK\r\n{extra}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        await writer.drain()


async def _run(path: str) -> None:
    server = await asyncio.start_unix_server(_serve, path)
    os.chmod(path, 0o600)  # noqa: PTH101 - as Jupyter does
    print("stand-in serves", base_url, flush=True)
    await server.serve_forever()


options = dict(word.partition("=")[::2] for word in sys.argv[1:])
base_url = options.get("--ServerApp.base_url", "")
if __name__ == "__main__":
    asyncio.run(_run(options["--ServerApp.sock"]))
