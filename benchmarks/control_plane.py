"""A separate etcd and scheduler for one benchmark, without gateway and agents.

Both are the real programs, as `gangline up` starts them, in a temporary folder and on free ports; both are ended by
their pid. etcd syncs every write to the disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.process import end_process, processor_seconds
from gangline.local.etcd import start_etcd
from gangline.local.etcd_program import find_etcd_binary
from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.local.port import find_free_ports
from gangline.local.program import Program, make_programs

READY_SECONDS = 60.0


@dataclass(frozen=True)
class ControlPlane:
    """Represents the running processes."""

    address: str  # address of the scheduler's gRPC server
    etcd_address: str
    token: str  # token of the cluster
    scheduler: psutil.Process
    etcd: psutil.Process

    def processor_seconds(self) -> dict[str, float]:
        """Returns the processor time that each process has used so far, by name."""
        return {
            name: processor_seconds(process)
            for name, process in (("scheduler", self.scheduler), ("etcd", self.etcd), ("load", psutil.Process()))
        }


@contextmanager
def running_control_plane(settings: str = "") -> Iterator[ControlPlane]:
    """Serves while the context lasts. settings: the text of the scheduler's file. Raises SystemExit with the end of the
    log of a scheduler that does not start."""
    with tempfile.TemporaryDirectory(prefix="gl-bench-") as folder:
        layout = Layout(Path(folder))
        layout.create()
        if settings:
            layout.settings("scheduler").write_text(settings)
        etcd = start_etcd(find_etcd_binary(), layout.root / "etcd")
        try:
            program = _scheduler(layout, etcd.address)
            with layout.log("scheduler").open("ab") as log:
                scheduler = subprocess.Popen(program.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                _wait_ready(layout, scheduler)
                yield ControlPlane(
                    address=program.addresses["grpc"],
                    etcd_address=etcd.address,
                    token=layout.cluster_token.read_text().strip(),
                    scheduler=psutil.Process(scheduler.pid),
                    etcd=psutil.Process(etcd.pid),
                )
            finally:
                end_process(scheduler)
        finally:
            etcd.stop()


def _scheduler(layout: Layout, etcd_address: str) -> Program:
    plan = ClusterPlan(num_agents=0, slots="1")
    ports = dict(zip(plan.port_names, find_free_ports(len(plan.port_names)), strict=True))
    programs = make_programs(layout, replace(plan, port_by_name=ports), sys.executable, find_etcd_binary())
    program = next(program for program in programs if program.kind == "scheduler")
    words = list(program.arguments)
    words[words.index("--etcd-endpoints") + 1] = etcd_address
    return replace(program, arguments=tuple(words))


def _wait_ready(layout: Layout, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not layout.ready("scheduler").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the scheduler does not serve: {layout.log('scheduler').read_text()[-2000:]}")
        time.sleep(0.05)
