"""Processes by identity: found by their mark, signalled, awaited and killed; and one service over its deaths."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.local.identity import Identity, find_marked, find_openers, identify, stop, wait_gone
from gangline.local.layout import Layout
from gangline.local.process_table import ProcessTable, ServiceEntry, load_table
from gangline.local.program import Program
from gangline.local.service import Service, describe_exit, readable

STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
)
OBEDIENT = "import sys; held = open(sys.argv[1], 'w'); print('up', flush=True); sys.stdin.read()"


class Started:
    """Processes that are ended after the test, each known to be up."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str, *arguments: str, **environment: str) -> Identity:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        identity = identify(process.pid)
        assert identity is not None
        return identity


@pytest.fixture
def started() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


def test_process_is_found_by_its_mark_and_by_what_it_holds_open(started: Started, tmp_path: Path) -> None:
    marked = started.start(OBEDIENT, str(tmp_path / "lock"), MARK=str(tmp_path))
    foreign = started.start(STUBBORN, MARK=f"{tmp_path}/other")
    assert find_marked("MARK", str(tmp_path)) == [marked]
    assert find_openers([marked, foreign], [tmp_path / "lock"]) == [marked]


def test_obedient_one_is_asked_and_a_stubborn_one_killed(started: Started, tmp_path: Path) -> None:
    obedient, stubborn = started.start(OBEDIENT, str(tmp_path / "x")), started.start(STUBBORN)
    assert stop([obedient, stubborn], grace_seconds=0.3) == [stubborn]
    assert not obedient.is_alive()
    assert not stubborn.is_alive()
    assert [process.wait() for process in started.processes] == [-signal.SIGTERM, -signal.SIGKILL]


def test_pid_that_was_given_away_again_is_left_alone(started: Started) -> None:
    process = started.start(STUBBORN)
    former = replace(process, start_ticks=process.start_ticks - 1)
    assert not former.is_alive()
    former.send(signal.SIGKILL)
    assert wait_gone([former], 0) == []
    assert process.is_alive()


def test_table_survives_its_file_and_a_broken_one_is_none(tmp_path: Path) -> None:
    entry = ServiceEntry("scheduler", "scheduler", "running", 7, 8, {"grpc": "h:1"}, 2, "killed by SIGKILL", "log")
    table = ProcessTable(Identity(1, 2), (entry,))
    table.write(tmp_path / "processes.json")
    assert load_table(tmp_path / "processes.json") == table
    assert table.find("scheduler") == entry
    assert json.loads((tmp_path / "processes.json").read_text())["services"]["scheduler"]["pid"] == 7
    (tmp_path / "processes.json").write_text("{")
    assert load_table(tmp_path / "processes.json") is None


def test_disk_that_takes_no_writes_keeps_the_former_table_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    table = ProcessTable(Identity(1, 2), ())
    table.write(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ProcessTable(Identity(3, 4), ()).write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_table(path) == table
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    layout = Layout(tmp_path)
    layout.create()
    arguments = (sys.executable, "-c", "import sys; print('first'); sys.exit('cannot listen')")
    return Service(Program("agent-1", "agent", arguments, {}, 1), layout)


def end(service: Service) -> int:
    assert service.process is not None
    return os.waitpid(service.process.pid, 0)[1]


def test_pauses_between_restarts_grow_and_a_steady_life_resets_them(service: Service) -> None:
    pauses, now = [], 100.0
    for _ in range(8):
        service.start(now)
        service.on_exit(end(service), now)
        assert service.restart_at is not None
        pauses.append(round(service.restart_at - now, 2))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    service.start(now)
    service.on_exit(end(service), now + 31)
    assert service.restart_at == pytest.approx(now + 31.1)
    assert (service.entry.restarts, service.entry.last_exit, service.entry.state) == (9, "exited with 1", "restarting")
    assert service.last_line() == "cannot listen"


def test_service_that_the_machine_does_not_start_is_tried_again(service: Service, tmp_path: Path) -> None:
    (tmp_path / "logs").rmdir()
    service.start(100.0)
    assert service.process is None
    assert service.entry.state == "restarting"
    assert service.restart_at == pytest.approx(100.1)
    assert service.entry.last_exit == "cannot start: No such file or directory"
    (tmp_path / "logs").mkdir()
    service.start(101.0)
    assert (service.entry.state, service.entry.restarts, service.restart_at) == ("starting", 1, None)
    end(service)


def test_service_has_the_variables_of_its_program(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    arguments = (sys.executable, "-c", "import os; print(os.environ['GOMAXPROCS'])")
    service = Service(Program("etcd", "etcd", arguments, {}, 0, environment=(("GOMAXPROCS", "1"),)), layout)
    service.start(0.0)
    assert end(service) == 0
    assert service.last_line() == "1"


def test_ready_file_of_an_earlier_process_does_not_count(service: Service, tmp_path: Path) -> None:
    service.start(0.0)
    assert not service.check_ready()
    service._layout.ready("agent-1").write_text(json.dumps({"pid": 1}))
    assert not service.check_ready()
    assert service.process is not None
    service._layout.ready("agent-1").write_text(json.dumps({"pid": service.process.pid}))
    assert service.check_ready()
    assert service.entry.state == "running"
    end(service)


def test_exit_and_log_line_in_words() -> None:
    assert describe_exit(signal.SIGKILL) == "killed by SIGKILL"
    assert describe_exit(3 << 8) == "exited with 3"
    assert readable('{"event": "cannot listen", "error": "port in use"}') == "cannot listen: port in use"
    assert readable("plain words") == "plain words"
    assert readable("[1]") == "[1]"
