"""A cluster of real processes for one test, started by `gangline up` in a folder of its own, on free ports.

Everything the test starts is stopped by `gangline down`, which knows the pids; whatever happens, nothing outlives the
context. Called by tests/e2e and tests/faults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.client import Client
from gangline.local.layout import Layout
from gangline.local.process_table import ProcessTable, ServiceEntry, load_table
from gangline.login import HOME_VARIABLE, Login
from tests.support import warm_program

COMMAND = str(Path(sys.executable).with_name("gangline"))
UP_SECONDS = 110.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of a test."""

    folder: Path  # data directory
    home: Path  # folder in which the CLI keeps its login
    login: Login
    is_forked: bool = True  # whether its programs and commands are forks of a process that has imported them

    @property
    def layout(self) -> Layout:
        return Layout(self.folder)

    @property
    def http_url(self) -> str:
        return f"http://{self.login.http_address}"

    @property
    def etcd_address(self) -> str:
        return self.service("etcd").addresses["client"]

    def connect(self) -> Client:
        """A new client of the gateway, to be closed by the caller."""
        return Client(self.login.address, self.login.token)

    def run(
        self, *arguments: str | Path, seconds: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`gangline ARGUMENTS`, logged in to this cluster."""
        environment = {**os.environ, HOME_VARIABLE: str(self.home), "COLUMNS": "160"}
        done = run_gangline(arguments, environment, seconds, is_forked=self.is_forked)
        assert not check or done.returncode == 0, (
            f"{done.args} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done

    def read(self, *arguments: str | Path) -> Any:
        """Returns the parsed output of `gangline ARGUMENTS --json`."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def table(self) -> ProcessTable:
        table = load_table(self.layout.processes)
        assert table is not None, f"there is no process table in {self.folder}"
        return table

    def service(self, name: str) -> ServiceEntry:
        """The process named "etcd", "scheduler", "gateway" or "agent-1"."""
        return next(entry for entry in self.table().services if entry.name == name)


@contextmanager
def running_cluster(
    folder: Path, agents: int = 2, slots: int = 2, scheduler_settings: str = "", *, is_forked: bool = True
) -> Iterator[Cluster]:
    """folder: a short path that the test owns. slots: artificial ones of each agent. scheduler_settings: TOML.

    is_forked: see Cluster.
    """
    data, home = folder / "data", folder / "home"
    if scheduler_settings:
        data.mkdir(parents=True, exist_ok=True)
        (data / "scheduler.toml").write_text(scheduler_settings)
    environment = {**os.environ, HOME_VARIABLE: str(home)}
    up: list[str | Path] = ["up", "--data-dir", data, "--agents", str(agents), "--slots", str(slots)]
    try:
        done = run_gangline(up, environment, UP_SECONDS, is_forked=is_forked)
        assert done.returncode == 0, f"gangline up failed: {done.stdout}{done.stderr}{_read_logs(data)}"
        yield Cluster(data, home, _load_login(home), is_forked)
    finally:
        run_gangline(["down", "--data-dir", data], environment, UP_SECONDS, is_forked=is_forked)


def run_gangline(
    arguments: Sequence[str | Path], environment: Mapping[str, str], seconds: float, *, is_forked: bool = True
) -> subprocess.CompletedProcess[str]:
    """`gangline ARGUMENTS` with this environment. is_forked: see Cluster."""
    words = [str(argument) for argument in arguments]
    if is_forked and warm_program.folder():
        return warm_program.WarmPair(warm_program.folder()).run(words, environment, seconds)
    command = [COMMAND, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def _load_login(home: Path) -> Login:
    login = Login(**json.loads((home / "login.json").read_text()))
    assert login.http_address, "a local cluster's gateway serves HTTP"
    return login


def _read_logs(data: Path) -> str:
    """The end of every log, for the message of a failed test."""
    logs = sorted((data / "logs").glob("*.log"))
    return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)
