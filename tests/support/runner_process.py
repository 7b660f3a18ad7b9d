"""Real trial runners for tests: warm processes to fork them and their ranks from, specs, archives, exits."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from google.protobuf import json_format

from gangline.domain.allocation import ExitReport
from gangline.launch import forkserver
from gangline.protocol.wire import from_proto
from gangline.v1 import agent_pb2, runner_pb2, types_pb2
from services.common.state_folder import SharedFolder

TOKEN = "alloc:7.1.1:test-token"
# Limit for the imports of a warm process. Those of torch take a second on an idle machine.
IMPORT_SECONDS = 200.0


class WarmProcess:
    """A fork server as the agent runs it. folder: its working directory; None for that of this process."""

    def __init__(
        self,
        socket_path: Path,
        preload: str,
        prefix: Sequence[str] = (),
        folder: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.socket_path = str(socket_path)
        command = [*prefix, sys.executable, "-m", "gangline.launch.forkserver", "--socket", self.socket_path]
        command += ["--preload", preload, *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder)
        deadline = time.monotonic() + 60
        while not socket_path.exists():
            assert self._process.poll() is None, "the fork server ended"
            assert time.monotonic() < deadline, "the fork server did not bind its socket"
            time.sleep(0.01)
        self.description = forkserver.describe(self.socket_path, IMPORT_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def spares(self) -> list[int]:
        """Returns the fork that waits, if there is one yet, and those that it has made."""
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def end_drainer(state: Path) -> None:
    """Ends the process that a runner below this state directory has left to deliver its records, if there is one."""
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][-2:] == ["--spools", str(state / "spool")]:
            process.kill()


def make_archive(files: Mapping[str, str]) -> tuple[str, bytes]:
    """Its sha256 and its bytes. A file that begins as a script may be executed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            info.mode = 0o755 if text.startswith("#!") else 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    content = gzip.compress(packed.getvalue(), mtime=0)
    return hashlib.sha256(content).hexdigest(), content


@dataclass
class Host:
    """One agent's side of an allocation: a state directory, and the processes that its runner is forked from.

    rank_template: "" for ranks that start cold.
    """

    agent_id: str
    state: Path
    runner_template: str
    rank_template: str
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def directory(self, allocation_id: str) -> Path:
        return self.state / "allocations" / allocation_id

    def start(self, spec: runner_pb2.RunnerSpec) -> Runner:
        directory = self.directory(spec.allocation.id)
        directory.mkdir(parents=True)
        SharedFolder(directory).write_spec(spec)
        return self.start_in(directory)

    def start_in(self, directory: Path) -> Runner:
        """One more runner in a folder that has a spec."""
        started_at = time.time()
        pid = forkserver.fork(
            self.runner_template,
            "services.trial_runner.program:main",
            {"directory": str(directory), "rank_forkserver": self.rank_template},
            environment=self.environment,
            directory=str(directory),
        )
        try:
            return Runner(pid, os.pidfd_open(pid), directory, started_at)
        except ProcessLookupError:
            return Runner(pid, None, directory, started_at)


@dataclass
class Runner:
    """pidfd: None for one that had ended before anybody could look."""

    pid: int
    pidfd: int | None
    directory: Path
    started_at: float

    async def wait(self, seconds: float = 60.0) -> ExitReport:
        """Its report, once its process is gone."""
        await self.gone(seconds)
        return self.exit()

    async def gone(self, seconds: float = 60.0) -> None:
        if self.pidfd is None:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self.pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), seconds)
        finally:
            loop.remove_reader(self.pidfd)

    def exit(self) -> ExitReport:
        return from_proto(ExitReport, self.status().exit)

    def status(self) -> agent_pb2.AllocationStatus:
        text = (self.directory / "exit.json").read_text()
        return json_format.Parse(text, agent_pb2.AllocationStatus())

    def nursery_pid(self) -> int:
        return int((self.directory / "nursery.pid").read_text())

    def kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def make_spec(
    members: Sequence[tuple[str, int]],
    node_rank: int,
    entrypoint: str,
    *,
    code_sha256: str = "",
    scheduler: Sequence[str] = (),
    gateway: Sequence[str] = (),
    allocation_id: str = "7.1.1",
    config: Mapping[str, Any] | None = None,
    lease_seconds: float = 0.0,
) -> runner_pb2.RunnerSpec:
    """members: (agent id, slots) by node rank. lease_seconds: 0 as from a scheduler that grants none."""
    trial_id, _, attempt = allocation_id.rpartition(".")
    allocation = types_pb2.Allocation(
        id=allocation_id,
        trial_id=trial_id,
        experiment_id=7,
        attempt=int(attempt),
        members=[
            types_pb2.Member(agent_id=agent, node_rank=rank, slot_ids=[f"{agent}/{slot}" for slot in range(slots)])
            for rank, (agent, slots) in enumerate(members)
        ],
    )
    full = {"entrypoint": entrypoint, "preemption_timeout": 30, **(config or {})}
    return runner_pb2.RunnerSpec(
        allocation=allocation,
        node_rank=node_rank,
        trial=types_pb2.Trial(id=trial_id, experiment_id=7, number=1, hyperparameters_json="{}", seed=1),
        config_json=json.dumps(full),
        code_sha256=code_sha256,
        cluster_id="test",
        storage_url="file:///nonexistent",
        scheduler_addresses=scheduler,
        gateway_addresses=gateway,
        token=TOKEN,
        rendezvous_seconds=10,
        lease_seconds=lease_seconds,
        slots=[
            types_pb2.Slot(id=slot, kind=types_pb2.SLOT_KIND_CPU) for slot in allocation.members[node_rank].slot_ids
        ],
    )


def living(pids: Sequence[int]) -> list[int]:
    """Returns the processes that are neither gone nor zombies."""
    alive = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                alive.append(pid)
    return alive
