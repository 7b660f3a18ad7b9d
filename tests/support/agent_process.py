"""Starts agents as real processes over the stand-in runner, looks into their journal, and ends all they started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

from gangline.v1 import runner_pb2, types_pb2
from tests.support.forked_service import ForkedService, fork_service
from tests.support.source import ROOT
from tests.support.stand_in_scheduler import TOKEN
from tests.support.wait import pause

T = TypeVar("T")
_PROGRAM = "tests.support.stand_in_agent"


async def wait_until(find: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Returns the result of `find` once it is true; for events outside of this process."""
    began_at = time.monotonic()
    async with asyncio.timeout(seconds):
        while not (result := find()):  # noqa: ASYNC110 - files and processes of others have no event
            await asyncio.sleep(pause(began_at))
    return result


def make_spec(
    allocation_id: str,
    slot_ids: Sequence[str],
    plan: Mapping[str, Any] | None = None,
    agent_id: str = "a1",
    epoch: int = 10,
) -> runner_pb2.RunnerSpec:
    trial_id, _, attempt = allocation_id.rpartition(".")
    return runner_pb2.RunnerSpec(
        allocation=types_pb2.Allocation(
            id=allocation_id,
            trial_id=trial_id,
            experiment_id=int(trial_id.split(".")[0]),
            attempt=int(attempt),
            epoch=epoch,
            pool="default",
            state=types_pb2.STATE_STARTING,
            members=[types_pb2.Member(agent_id=agent_id, node_rank=0, slot_ids=slot_ids)],
        ),
        config_json=json.dumps(plan or {}),
        token="a-secret-of-this-allocation",
    )


class AgentProcess:
    """One state directory and the agent that runs in it, if any; may be started again after its end.

    prefix: a command that runs the agent's. With one, or with an environment, which libraries may read when they are
    loaded, the agent is started; else it is forked (forked_service.py). It is also forked with a library, which it
    loads first.
    """

    def __init__(self, folder: Path, addresses: Sequence[str], agent_id: str = "a1") -> None:
        self.state = folder / "state"
        self._ready = folder / "ready.json"
        self._log = folder / "agent.log"
        token = folder / "token"
        token.write_text(TOKEN)
        self._flags = [
            *("--id", agent_id),
            *("--scheduler-addresses", ",".join(addresses), "--cluster-token-file", str(token)),
            *("--state-dir", str(self.state), "--ready-file", str(self._ready)),
            *("--metrics-listen", "127.0.0.1:0", "--health-seconds", "0.2"),
        ]
        self.prefix: list[str] = []
        self.process: subprocess.Popen[bytes] | ForkedService | None = None

    def spawn(
        self, *flags: str, environment: Mapping[str, str] | None = None, library: Path | None = None
    ) -> subprocess.Popen[bytes] | ForkedService:
        flags = (*self._flags, *(() if "--slots" in flags else ("--slots", "2")), *flags)
        self._ready.unlink(missing_ok=True)
        if not self.prefix and (library is not None or not environment):
            self.process = fork_service(
                _PROGRAM, flags, self._log, ROOT, environment=environment or os.environ, library=library
            )
            return self.process
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", _PROGRAM, *flags],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )
        return self.process

    async def start(
        self, *flags: str, environment: Mapping[str, str] | None = None, library: Path | None = None
    ) -> None:
        process = self.spawn(*flags, environment=environment, library=library)
        await wait_until(lambda: self._ready.exists() or process.poll() is not None)
        assert process.poll() is None, self.log()

    @property
    def metrics_address(self) -> str:
        return str(json.loads(self._ready.read_text())["metrics"])

    def scrape(self) -> str:
        """Its /metrics page."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def log(self) -> str:
        return self._log.read_text()

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def folder(self, allocation_id: str) -> Path:
        return self.state / "allocations" / allocation_id

    def starts(self, allocation_id: str) -> list[int]:
        """The pids of all runners that were ever started for it."""
        for where in ("allocations", "ended"):
            with suppress(FileNotFoundError):
                return [int(line) for line in (self.state / where / allocation_id / "starts").read_text().split()]
        return []

    async def runner(self, allocation_id: str) -> int:
        """The pid of its runner, once it runs."""
        return (await wait_until(lambda: self.starts(allocation_id)))[-1]

    def finish(self, allocation_id: str) -> None:
        (self.folder(allocation_id) / "finish").touch()

    def close(self) -> None:
        """Ends the agent, then every runner, nursery and rank whose pid lies in its state directory."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        for path in [*self.state.glob("*/*/starts"), *self.state.glob("*/*/*.pid")]:
            for pid in path.read_text().split():
                with suppress(ProcessLookupError):
                    os.killpg(int(pid), signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Zombies do not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
