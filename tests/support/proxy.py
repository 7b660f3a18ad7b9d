"""A TCP proxy that can hold back what goes one way, to lose answers and to delay requests on purpose. With several
targets it is the address that names them all."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator
from types import TracebackType


@contextlib.contextmanager
def one_address(*targets: str) -> Iterator[str]:
    """The address of a Proxy that runs in a thread of its own."""
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    ending = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with Proxy(*targets) as proxy:
            addresses.put(proxy.address)
            await ending.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield addresses.get(timeout=10)
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


class Proxy:
    """Forwards to the first of `targets` that takes the connection. Held bytes are kept in `held` until released. A
    connection that the targets refuse or break is closed towards the caller as well.

    delay_seconds: each piece of an answer arrives so much later.

    hold_after: once a request with these bytes has been forwarded, every answer is held back, also to that request.
    """

    def __init__(self, *targets: str, port: int = 0) -> None:
        """port: where to listen, 0 for a free one."""
        self._port = port
        parts = [target.rpartition(":") for target in targets]
        self._targets = [(host, int(target_port)) for host, _, target_port in parts]
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._upstream: asyncio.StreamWriter | None = None
        self.is_holding_requests = False
        self.is_holding_answers = False
        self.held: list[bytes] = []
        self.hold_after: bytes | None = None
        self.delay_seconds = 0.0
        self.num_answer_bytes = 0
        self.address = ""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def release(self, num_chunks: int) -> None:
        """Sends the first of what was held on to the target, and drops the rest."""
        assert self._upstream is not None
        for chunk in self.held[:num_chunks]:
            self._upstream.write(chunk)
        self.held.clear()
        await self._upstream.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for target in self._targets:
            with contextlib.suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection(*target)
                break
        else:
            writer.close()
            return
        self._upstream = up_writer
        for task in (
            asyncio.create_task(self._forward_requests(reader, up_writer)),
            asyncio.create_task(self._forward_answers(up_reader, writer)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if self.hold_after is not None and self.hold_after in chunk:
                    self.is_holding_answers, self.hold_after = True, None
                if self.is_holding_requests:
                    self.held.append(chunk)
                else:
                    writer.write(chunk)
                    await writer.drain()
        writer.close()

    async def _forward_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                self.num_answer_bytes += len(chunk)
                await asyncio.sleep(self.delay_seconds)
                if not self.is_holding_answers:
                    writer.write(chunk)
                    await writer.drain()
        writer.close()
