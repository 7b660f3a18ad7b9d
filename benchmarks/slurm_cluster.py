"""Runs a real Slurm on one machine, for comparison: a controller and several node daemons on loopback.

It lives in a temporary folder. This module owns its configuration, its processes and the calls of its commands.
Debian's slurm-wlm and munge are installed when they are missing. Root is required, because slurmd runs jobs as their
users. Ports are free ones. Every process carries a mark in its environment and is ended by its pid, including remaining
jobs.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.process import end_process
from benchmarks.run_folder import make_run_folder
from gangline.local.port import find_free_ports

PACKAGES = ("slurm-wlm", "slurmctld", "slurmd", "slurm-client", "munge")
INSTALLER = Path(__file__).parent.parent / "scripts" / "install_debian_packages"
# Variable in the environment of every process, which finds jobs that are left.
MARK = "GANGLINE_BENCHMARK_SLURM"
READY_SECONDS = 60.0
COMMAND_SECONDS = 60.0
# States of jobs that have not ended.
STATES = "PENDING,CONFIGURING,RUNNING,COMPLETING"

# The settings that Slurm's own guide for high throughput advises for many short jobs, as far as 22.05 knows them.
HIGH_THROUGHPUT = (
    "batch_sched_delay=0,sched_min_interval=100000,default_queue_depth=1000,partition_job_depth=0,defer_batch,"
    "max_rpc_cnt=150,bf_interval=5,bf_max_job_test=2000,bf_continue"
)


class SlurmMissing(Exception):
    """Says why there is no Slurm to compare with here."""


@dataclass
class Slurm:
    """Represents a running Slurm. Its commands may be called from several threads."""

    folder: Path
    nodes: int
    slots: int
    parameters: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), MARK: str(self.folder)}

    @property
    def version(self) -> str:
        return self.run("sinfo", "--version")

    def run(self, *words: str) -> str:
        """Runs a command and returns its output. Raises subprocess.CalledProcessError, TimeoutExpired."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=True, timeout=COMMAND_SECONDS
        )
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submits a job and returns its id."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}")
        return self.run(*words).partition(";")[0]

    def jobs(self) -> list[tuple[str, str]]:
        """Returns id and reason of every job that has not ended."""
        lines = self.run("squeue", "--noheader", f"--states={STATES}", "--format=%i|%r").splitlines()
        return [(line.partition("|")[0], line.partition("|")[2]) for line in lines]

    def drain(self, seconds: float) -> int:
        """Waits until no job is left. A job that Slurm holds after a failed launch never leaves by itself: it is
        canceled and counted. Returns the number of such jobs. Raises TimeoutError."""
        stranded: set[str] = set()
        deadline = time.monotonic() + seconds
        while jobs := self.jobs():
            held_jobs = [job for job, reason in jobs if "held" in reason.lower() and job not in stranded]
            if held_jobs:
                stranded.update(held_jobs)
                self.run("scancel", *held_jobs)
            if time.monotonic() > deadline:
                raise TimeoutError(f"Slurm still has {len(jobs)} jobs after {seconds:g} s")
            time.sleep(0.2)
        return len(stranded)


@contextmanager
def running_slurm(nodes: int, slots: int, parameters: str = "") -> Iterator[Slurm]:
    """Runs Slurm while the context lasts. slots: of each node, one processor each. parameters: its SchedulerParameters;
    an empty text leaves the default.

    Raises SlurmMissing.
    """
    _install()
    slurm = Slurm(make_run_folder("gl-slurm-"), nodes, slots, parameters)
    try:
        _start(slurm)
        yield slurm
    finally:
        _stop(slurm)


def _install() -> None:
    if os.geteuid() != 0:
        raise SlurmMissing("Slurm's daemons take root")
    if not all(shutil.which(program) for program in ("slurmctld", "slurmd", "munged", "sbatch")):
        done = subprocess.run([INSTALLER, *PACKAGES], check=False)
        if done.returncode:
            raise SlurmMissing("its packages cannot be installed")


def _start(slurm: Slurm) -> None:
    folder = slurm.folder
    folder.chmod(0o755)
    for part in ("state", "spool", "log", "munge"):
        (folder / part).mkdir()
    _start_munge(slurm)
    ports = find_free_ports(slurm.nodes + 1)
    (folder / "slurm.conf").write_text(_configuration(slurm, ports))
    _spawn(slurm, "slurmctld", ["slurmctld", "-D", "-f", str(folder / "slurm.conf")])
    for number in range(slurm.nodes):
        name = f"n{number}"
        (folder / "spool" / name).mkdir()
        _spawn(slurm, name, ["slurmd", "-D", "-N", name, "-f", str(folder / "slurm.conf")])
    _wait_ready(slurm)


def _start_munge(slurm: Slurm) -> None:
    """Starts munge with a key and a socket of its own, as the user that its package created."""
    user, folder = pwd.getpwnam("munge"), slurm.folder / "munge"
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    for path in (folder, key):
        os.chown(path, user.pw_uid, user.pw_gid)
    options = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid", "log-file": folder / "log"}
    words = ["munged", "--foreground", "--force", "--num-threads=2", f"--seed-file={folder / 'seed'}"]
    words += [f"--{name}={path}" for name, path in options.items()]
    _spawn(slurm, "munge", words, user="munge", group="munge", extra_groups=[])
    _wait((folder / "socket").exists, slurm, "munge does not listen")


def _configuration(slurm: Slurm, ports: Sequence[int]) -> str:
    host, folder = socket.gethostname().partition(".")[0], slurm.folder
    lines = {
        "ClusterName": "bench",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(ports[0]),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder / 'munge' / 'socket'}",
        "CredType": "cred/munge",
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": str(folder / "spool" / "%n"),
        "SlurmctldPidFile": str(folder / "slurmctld.pid"),
        "SlurmdPidFile": str(folder / "slurmd.%n.pid"),
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SlurmdParameters": "config_overrides",
        "MaxJobCount": "20000",
        "MaxArraySize": "20001",
        "MinJobAge": "300",
    }
    if slurm.parameters:
        lines["SchedulerParameters"] = slurm.parameters
    nodes = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={slurm.slots} RealMemory=1000"
        for number, port in enumerate(ports[1:])
    ]
    pool = f"PartitionName=main Nodes=n[0-{slurm.nodes - 1}] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP"
    return "\n".join([*(f"{key}={value}" for key, value in lines.items()), *nodes, pool, ""])


def _spawn(slurm: Slurm, name: str, words: Sequence[str], **options: object) -> None:
    with (slurm.folder / "log" / name).open("ab") as log:
        process = subprocess.Popen(  # type: ignore[call-overload]  # options of Popen, passed on
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=slurm.environment, **options
        )
    slurm.processes.append(process)


def _wait_ready(slurm: Slurm) -> None:
    def is_up() -> bool:
        with suppress(subprocess.SubprocessError):
            return len(slurm.run("sinfo", "--noheader", "--Node", "--states=idle").splitlines()) == slurm.nodes
        return False

    _wait(is_up, slurm, "not all nodes came up")


def _wait(is_done: Callable[[], bool], slurm: Slurm, what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_done():
        ended = [process for process in slurm.processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-500:] for path in sorted((slurm.folder / "log").iterdir()))
            raise SlurmMissing(f"{what}: {logs}")
        time.sleep(0.1)


def _stop(slurm: Slurm) -> None:
    """Ends node daemons first, then munge, by which the others authenticate, and then processes that jobs have left."""
    for process in reversed(slurm.processes):
        end_process(process)
    for left in psutil.process_iter():
        with suppress(psutil.Error):
            if left.environ().get(MARK) == str(slurm.folder):
                left.kill()
