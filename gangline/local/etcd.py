"""Runs one member of etcd that listens on a port, for the tests and benchmarks.

Owns the command line of a single member, the discovery of its port, and the launcher that ties a member to the life of
its parent. It is no client: it neither reads from nor writes into etcd.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.errors import ErrorKind, GanglineError
from gangline.local.etcd_program import read_etcd_version

# Time limit for etcd to serve clients.
_READY_SECONDS = 20.0
# Time limit for an orderly stop; a kill follows.
_STOP_SECONDS = 5.0
_SERVES = re.compile(r"serving client traffic .*\"address\":\"([^\"]+)\"")
# Starts the real program in this very process, so that it ends with its parent, however the parent ends. It runs after
# the caller's exec and not between fork and exec, because the caller may have threads.
_TIED_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class EtcdProcess:
    """A running member."""

    address: str  # "host:port" for clients
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Stops it in order, or by force after 5 seconds. It may be called twice."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills it, as a power cut would."""
        self.process.kill()
        self.process.wait()


def start_etcd(
    binary: Path, data_directory: Path, *, is_durable: bool = True, client_port: int = 0, is_tied: bool = False
) -> EtcdProcess:
    """Starts a single member that keeps its state below `data_directory`; returns once it serves.

    is_durable: False lets a power cut lose writes, for tests. client_port: 0 takes a free one. is_tied: the member ends
    when the thread that started it ends. Its log is `data_directory/etcd.log`.
    """
    client, peer = f"http://127.0.0.1:{client_port}", "http://127.0.0.1:0"
    arguments = [
        *("--name", "gangline", "--initial-cluster", f"gangline={peer}"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        # A single member elects itself only after a timeout, 1 s by default. A shorter timeout is safe, because there
        # is no other member.
        *("--heartbeat-interval", "60", "--election-timeout", "300"),
        *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "10000"),
    ]
    if not is_durable and read_etcd_version(binary) >= (3, 5, 0):
        arguments.append("--unsafe-no-fsync")
    return launch_etcd(binary, arguments, data_directory, is_tied=is_tied)


def launch_etcd(
    binary: Path, arguments: Sequence[str], data_directory: Path, *, is_tied: bool = False, is_alone: bool = True
) -> EtcdProcess:
    """Runs etcd with these arguments and waits until it serves clients.

    is_alone: False returns as soon as it runs, with an empty address, for a member that waits for others.
    """
    data_directory.mkdir(parents=True, exist_ok=True)
    log_path = data_directory / "etcd.log"
    command = [str(binary), "--data-dir", str(data_directory / "member-data"), "--logger", "zap", *arguments]
    if is_tied:
        command = tie(command)
    with log_path.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
        )
    if not is_alone:
        return EtcdProcess("", process)
    try:
        return EtcdProcess(wait_for_address(process, log_path, log_start), process)
    except BaseException:
        process.kill()
        process.wait()
        raise


def tie(command: Sequence[str]) -> list[str]:
    """Returns a command that runs the given one until the calling thread ends; the program then gets SIGTERM."""
    return [sys.executable, "-I", "-S", "-c", _TIED_LAUNCHER, str(os.getpid()), *command]


def wait_for_address(process: subprocess.Popen[bytes], log_path: Path, log_start: int = 0) -> str:
    """Reads the log until it names the address on which clients are served."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        text = _read_from(log_path, log_start)
        match = _SERVES.search(text)
        if match:
            return match[1]
        if has_ended:
            raise _start_error(process.returncode, text, log_path)
        time.sleep(0.02)
    raise GanglineError(
        "etcd.not_ready",
        f"etcd does not serve after {_READY_SECONDS:g} s; is another one using {log_path.parent}? See {log_path}",
        ErrorKind.TIMEOUT,
    )


def _start_error(code: int, text: str, log_path: Path) -> GanglineError:
    if "address already in use" in text:
        return GanglineError(
            "etcd.port_in_use", f"etcd cannot listen: its port is in use; see {log_path}", ErrorKind.CONFLICT
        )
    return GanglineError(
        "etcd.failed_to_start", f"etcd ended with {code}: {_last_complaint(text)}; see {log_path}", ErrorKind.INTERNAL
    )


def _last_complaint(text: str) -> str:
    """Returns the last entry of the log at level "error" or above, else its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("level") in ("error", "fatal", "panic"):
            return f"{entry.get('msg')} {entry.get('error', '')}".strip()
    return lines[-1] if lines else "it said nothing"


def _read_from(path: Path, start: int) -> str:
    with path.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace")


def _environment() -> dict[str, str]:
    """Returns this environment without ETCD_* variables, because etcd takes each of them for a flag. The one that
    allows etcd on other processors stays."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ETCD_") or name == "ETCD_UNSUPPORTED_ARCH"
    }
