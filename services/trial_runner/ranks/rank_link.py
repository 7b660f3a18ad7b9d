"""The runner's end of the unix socket over which its ranks send messages.

Owns the socket, in its own folder where ranks put their temporary folders too. Each frame holds a RankMessage or a
RunnerMessage. It passes messages on and decides nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from gangline import frame, report_socket, unix_socket
from gangline.v1 import rank_pb2
from services.common.tree import remove_tree
from services.trial_runner.delivery.relay import CHIEF
from services.trial_runner.ranks.report_reader import ReportReader

_SOCKET = "rank.sock"
OnMessage = Callable[[int, rank_pb2.RankMessage], None]

log = structlog.get_logger(__name__)


class RankLinkServer:
    """Accepts the ranks' connections and passes their messages on.

    A rank has one connection for each process that reports for it: its own, and workers that it has started.
    folder: made by `start` and removed by `close`. The agent removes it after a runner that was killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reports: ReportReader | None = None
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, int] = {}
        self._preempt: rank_pb2.PreemptRank | None = None

    @property
    def path(self) -> str:
        return str(self._folder / _SOCKET)

    @property
    def connected(self) -> frozenset[int]:
        """Ranks with a connection, which therefore receive the runner's messages."""
        return frozenset(self._writers.values())

    async def start(self, on_message: OnMessage) -> None:
        """on_message: called with the rank and each message after its hello."""
        # This runner holds the lock of the allocation's folder, so no other process uses these files any more.
        _remove(self._folder)
        self._folder.mkdir(mode=0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix_socket.bind(listener, self.path)
        # The backlog holds the ranks of one machine, which connect at the same time.
        self._reports = ReportReader(self.path, on_message)
        serve = partial(self._serve, self._reports, on_message)
        self._server = await asyncio.start_server(serve, sock=listener, backlog=256)
        self._reports.start()

    def send(self, rank: int, message: rank_pb2.RunnerMessage) -> None:
        """Sends a message to all processes of a rank; does nothing if they have gone."""
        for writer in [writer for writer, owner in self._writers.items() if owner == rank]:
            _write(writer, message)

    def preempt(self, reason: str, grace_seconds: float) -> None:
        """Asks every rank to stop after a checkpoint, also those that connect later."""
        self._preempt = rank_pb2.PreemptRank(reason=reason, grace_seconds=grace_seconds)
        for writer in self._writers:
            self._send_preempt(writer)

    def trace(self, batches: int) -> None:
        """Asks the chief to trace so many batches; does nothing if it is not here."""
        self.send(CHIEF, rank_pb2.RunnerMessage(trace=rank_pb2.TraceRank(batches=batches)))

    async def close(self) -> None:
        """Closes the socket. Called only when the ranks have gone, because a rank that loses its runner ends."""
        if self._reports is not None:
            self._reports.close()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        # If the folder holds only the sockets, it is left to the agent, which removes it with the allocation's folder.
        # Freed inodes make the starts of the next commands slow.
        own = {_SOCKET, report_socket.path_beside(_SOCKET)}
        with suppress(FileNotFoundError):
            if any(entry.name not in own for entry in self._folder.iterdir()):
                _remove(self._folder)

    def _send_preempt(self, writer: asyncio.StreamWriter) -> None:
        _write(writer, rank_pb2.RunnerMessage(preempt=self._preempt))

    async def _serve(
        self,
        reports: ReportReader,
        on_message: OnMessage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        rank = -1
        try:
            hello = await _read(reader)
            rank = hello.hello.rank
            self._writers[writer] = rank
            if self._preempt is not None:
                self._send_preempt(writer)
            while True:
                message = await _read(reader)
                # The rank has sent its reports before this message.
                reports.read(rank)
                if message.HasField("hello"):
                    # A worker of a script learns its rank after it has connected.
                    rank = self._writers[writer] = message.hello.rank
                else:
                    on_message(rank, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (DecodeError, ValueError) as error:
            log.error("a rank sent what is no message; its connection is closed", rank=rank, error=str(error))
        finally:
            self._writers.pop(writer, None)
            with suppress(OSError):
                writer.close()


def _remove(folder: Path) -> None:
    with suppress(OSError, RecursionError):
        remove_tree(folder)


def _write(writer: asyncio.StreamWriter, message: rank_pb2.RunnerMessage) -> None:
    writer.write(frame.pack(message.SerializeToString()))


async def _read(reader: asyncio.StreamReader) -> rank_pb2.RankMessage:
    # A rank runs the user's code, so the limit of a frame matters here.
    return rank_pb2.RankMessage.FromString(await frame.read(reader))
