"""The process that keeps a local cluster alive: `python -m gangline.local.supervisor --data-dir DIR`.

It starts the services stage by stage and reports its progress to `up` over a pipe. It restarts a service that died, on
the same ports, and on SIGTERM stops all of them in order. It has one thread. It reaps every process of the cluster,
because orphans become its children. A disk that takes no writes does not end it: the services come back with the space.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.errors import GanglineError
from gangline.local.etcd_move import prepare_etcd
from gangline.local.identity import identify
from gangline.local.layout import Layout, unusable
from gangline.local.lock import acquire_lock
from gangline.local.outage import describe_shortage
from gangline.local.plan import ClusterPlan
from gangline.local.process_table import ProcessTable
from gangline.local.program import make_programs
from gangline.local.service import Service
from gangline.local.shutdown import stop_cluster

# Time limit for the services of one stage to serve.
START_SECONDS = 90.0
# Interval between two checks of a service that is starting.
_LOOK_SECONDS = 0.05
# Signals wake an idle supervisor, so it need not poll.
_LOOK_WHEN_IDLE_SECONDS = 3600.0
# Interval between two attempts to write the table where the disk is full.
_WRITE_AGAIN_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36


class UpReporter:
    """Sends lines of JSON to `up`, as long as it reads them."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **values: Any) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps({"event": event, **values}).encode() + b"\n")
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Supervisor:
    """Runs the services. grace_seconds: how long a stop waits for trials to save their state."""

    def __init__(self, layout: Layout, services: list[Service], reporter: UpReporter, grace_seconds: float) -> None:
        self._layout = layout
        self._services = services
        self._reporter = reporter
        self._grace_seconds = grace_seconds
        self._is_stopping = False
        # When to write the table again; None while the file is that of the present state.
        self._write_again_at: float | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Runs until a stop. Returns the exit status: 0 after an orderly stop, 1 when the cluster did not start."""
        self._listen_to_signals()
        try:
            is_up = self._start_all()
            if is_up:
                self._reporter.send("up")
                self._reporter.close()
                self._supervise()
        finally:
            self._stop_all()
        return 0 if is_up or self._is_stopping else 1

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _on_stop_signal(self, *_: Any) -> None:
        self._is_stopping = True

    def _start_all(self) -> bool:
        for stage in sorted({service.program.stage for service in self._services}):
            services = [service for service in self._services if service.program.stage == stage]
            for service in services:
                service.start(time.monotonic())
            self._write_table()
            if not self._await_ready(services):
                return False
        return True

    def _await_ready(self, services: list[Service]) -> bool:
        started = time.monotonic()
        while not self._is_stopping:
            self._look_for_ready(time.monotonic() - started)
            if all(service.state == "running" for service in services):
                return True
            failed = next((service for service in self._services if service.restart_at is not None), None)
            if failed is not None:
                self._report_failure(failed, failed.entry.last_exit)
                return False
            if time.monotonic() - started > START_SECONDS:
                late = next(service for service in services if service.state != "running")
                self._report_failure(late, f"does not serve after {START_SECONDS:g} s")
                return False
            self._wait(_LOOK_SECONDS)
        return False

    def _report_failure(self, service: Service, what: str) -> None:
        last_line = service.last_line() or "it printed nothing"
        shortage = describe_shortage(self._layout)
        message = f"{service.program.name} {what}: {last_line} (log: {service.entry.log}){shortage and f'; {shortage}'}"
        self._reporter.send("failed", code="local.service_failed", message=message)

    def _look_for_ready(self, elapsed_seconds: float) -> None:
        for service in self._services:
            if service.check_ready():
                self._reporter.send("ready", name=service.program.name, seconds=round(elapsed_seconds, 2))
                self._write_table()

    def _supervise(self) -> None:
        while not self._is_stopping:
            self._wait(self._pause())
            now = time.monotonic()
            for service in self._services:
                if service.restart_at is not None and service.restart_at <= now:
                    say(f"{service.program.name} {service.entry.last_exit}; starting it again")
                    service.start(now)
                    self._write_table()
                if service.check_ready():
                    say(f"{service.program.name} serves again")
                    self._write_table()

    def _pause(self) -> float:
        """Returns the seconds until the next work: a process to start, or a check of one that is about to serve."""
        if any(service.state == "starting" for service in self._services):
            return _LOOK_SECONDS
        due = [service.restart_at for service in self._services if service.restart_at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else _LOOK_WHEN_IDLE_SECONDS

    def _wait(self, seconds: float) -> None:
        """Waits for a signal or for the end of the time, then reaps every child that has ended."""
        if self._write_again_at is not None:
            seconds = min(seconds, max(0.0, self._write_again_at - time.monotonic()))
        select.select([self._wake_read], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._reap()
        if self._write_again_at is not None and self._write_again_at <= time.monotonic():
            self._write_table()

    def _reap(self) -> None:
        service_by_pid = {service.process.pid: service for service in self._services if service.process}
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in service_by_pid:
                    service_by_pid[pid].on_exit(status, time.monotonic())
                    self._write_table()

    def _write_table(self) -> None:
        """Writes the table. Where the disk takes no writes, the former file stays, and `_wait` writes it again."""
        own = identify(os.getpid())
        assert own is not None
        path, was_late = self._layout.processes, self._write_again_at is not None
        try:
            ProcessTable(own, tuple(service.entry for service in self._services)).write(path)
        except OSError as failure:
            self._write_again_at = time.monotonic() + _WRITE_AGAIN_SECONDS
            if not was_late:
                say(f"cannot write {path}: {failure.strerror}; trying again until it can be written")
            return
        self._write_again_at = None
        if was_late:
            say(f"{path} is written again")

    def _stop_all(self) -> None:
        stop_cluster(self._layout, [service.entry for service in self._services], self._grace_seconds, say)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with suppress(OSError):
            self._layout.processes.unlink(missing_ok=True)


def say(line: str) -> None:
    """Writes a line to the supervisor's log. A line that the disk does not take is lost."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n".encode())


def _note(reporter: UpReporter, line: str) -> None:
    say(line)
    reporter.send("note", text=line)


def main() -> int:
    parser = argparse.ArgumentParser(description="Keeps a local cluster alive; started by `gangline up`.")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--report-fd", type=int)
    parser.add_argument("--grace-seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    layout, reporter = Layout(arguments.data_dir), UpReporter(arguments.report_fd)
    # Orphans of the cluster become children of the supervisor, which reaps them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        if not acquire_lock(layout.lock):
            reporter.send("failed", code="local.running", message=f"another supervisor just took {layout.root}")
            return 1
        plan = ClusterPlan.parse(layout.plan.read_text("utf-8"))
        etcd = prepare_etcd(layout, lambda line: _note(reporter, line))
        programs = make_programs(layout, plan, sys.executable, etcd.path, etcd.warning)
        services = [Service(program, layout) for program in programs]
        return Supervisor(layout, services, reporter, arguments.grace_seconds).run()
    except GanglineError as error:
        reporter.send("failed", code=error.code, message=error.message)
        return 1
    except OSError as failure:
        refusal = unusable(layout.root, failure)
        reporter.send("failed", code=refusal.code, message=refusal.message)
        raise
    except BaseException as failure:
        reporter.send("failed", code="local.supervisor", message=f"the supervisor failed: {failure!r}")
        raise


if __name__ == "__main__":
    sys.exit(main())
