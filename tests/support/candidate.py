"""A scheduler's leadership in a process of its own, without the scheduler: tests kill and stop it.

Campaigns, then obeys lines on stdin and answers each with one line of JSON on stdout:
`commit KEY VALUE`, `stop-commit KEY VALUE` (stops itself by SIGSTOP and commits the moment it goes on), `resign`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil

from gangline.domain.resource import ServiceInstance
from services.common.election import Deposed, Election, Leadership
from services.common.etcd import EtcdClient, EtcdSettings, Put
from services.common.server import Principal, serve
from services.common.telemetry import configure_logging


class Candidate:
    """The test's end of such a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin
        assert process.stdout
        self._stdin, self._stdout = process.stdin, process.stdout
        self.pid = process.pid

    async def answer(self, seconds: float = 15.0) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            line = await self._stdout.readline()
        assert line, "the candidate ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def tell(self, *words: str) -> None:
        self._stdin.write(" ".join(words).encode() + b"\n")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def is_stopped(self) -> bool:
        state: str = psutil.Process(self.pid).status()
        return state == psutil.STATUS_STOPPED


@contextlib.asynccontextmanager
async def start_candidate(endpoint: str, name: str, lease_seconds: float) -> AsyncIterator[Candidate]:
    """Returns once it campaigns and serves its grpc port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.candidate", endpoint, name, str(lease_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    candidate = Candidate(process)
    try:
        assert (await candidate.answer())["event"] == "campaigning"
        yield candidate
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _main(endpoint: str, name: str, lease_seconds: float) -> None:
    configure_logging(name, "text")
    server = await serve("127.0.0.1:0", lambda _: None, _admit)
    async with EtcdClient(EtcdSettings(endpoints=(endpoint,))) as client:
        instance = ServiceInstance(id=name, kind="scheduler", grpc_address=server.address)
        election = Election(client, instance, lease_seconds)
        _say(event="campaigning", address=server.address)
        leadership = await election.campaign()
        _say(event="elected", epoch=leadership.epoch)
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while words := (await lines.readline()).decode().split():
            await _obey(words, election, leadership)


async def _obey(words: list[str], election: Election, leadership: Leadership) -> None:
    if words[0] == "resign":
        await election.resign(leadership)
        _say(event="resigned")
        return
    if words[0] == "stop-commit":
        os.kill(os.getpid(), signal.SIGSTOP)
    # Nothing is awaited in between: this is what a leader knows that was stopped between its check and its write.
    status = {"is_lost": leadership.lost.is_set(), "is_fresh": leadership.is_fresh}
    try:
        revision = await leadership.commit([Put(words[1], words[2].encode())])
        _say(event="committed", revision=revision, **status)
    except Deposed:
        _say(event="deposed", **status)


async def _admit(_: str, __: str | None) -> Principal:
    return Principal("cluster", "test")


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
