"""The warm process and what is forked from it, as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gangline import frame
from gangline.errors import GanglineError
from gangline.launch import forkserver
from gangline.launch.spare import NAME
from services.agent.allocations.launcher import RunnerProgram
from tests.support import warm_program
from tests.support.runner_process import WarmProcess, living
from tests.support.wait import until

TARGETS = """
import json, os, sys, time, weakref
from gangline.launch import child

def tell(arguments, fds):
    told = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "is_leader": os.getsid(0) == os.getpid(),
        "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
        "stdin": os.readlink("/proc/self/fd/0"),
        "is_preloaded": "decimal" in sys.modules,
        "name": open("/proc/self/comm").read().strip(),
    }
    os.write(fds[0], json.dumps(told).encode())
    return 0

class Preloaded:
    pass

kept = Preloaded()
weakref.finalize(kept, open, os.environ["PYTHONPATH"] + "/inherited", "w")

def leave(arguments, fds):
    own = Preloaded()
    weakref.finalize(own, open, os.environ["PYTHONPATH"] + "/own", "w")
    child.leave_like_a_program(0)

def wait(arguments, fds):
    os.write(fds[0], b"up")
    time.sleep(600)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmProcess]:
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        (Path(folder) / "forked_targets.py").write_text(TARGETS)
        monkeypatch.setenv("PYTHONPATH", folder)
        made = WarmProcess(Path(folder) / "warm.sock", "decimal,no_such_module,forked_targets")
        yield made
        made.close()


def fork(server: WarmProcess, target: str, *, environment: dict[str, str] | None = None) -> tuple[int, int]:
    """Its pid and the descriptor from which what it says can be read."""
    read_fd, write_fd = os.pipe()
    try:
        pid = forkserver.fork(
            server.socket_path,
            f"forked_targets:{target}",
            {"number": 7},
            environment=environment or {},
            directory="/",
            fds=[write_fd],
        )
    finally:
        os.close(write_fd)
    return pid, read_fd


def test_it_has_one_thread_and_says_what_it_could_not_load(server: WarmProcess) -> None:
    assert server.description["threads"] == 1
    assert list(server.description["failed"]) == ["no_such_module"]


def test_torch_leaves_one_thread_behind() -> None:
    """Without this a fork could inherit a lock that no thread will ever release. The process is the one of this test
    run that has imported what the ranks' fork server imports."""
    description = forkserver.describe(warm_program.WarmPair(warm_program.folder()).ranks())
    assert "torch" in RunnerProgram().rank_preload
    assert (description["threads"], description["failed"]) == (1, {})


def test_the_runners_imports_leave_one_thread_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        made = WarmProcess(Path(folder) / "warm.sock", "services.trial_runner.program")
        assert made.description == {"pid": made.pid, "threads": 1, "failed": {}}
        made.close()


@pytest.mark.parametrize("waits", [True, False], ids=["made before", "made anew"])
async def test_a_child_is_what_was_asked_for(server: WarmProcess, waits: bool) -> None:
    await until(lambda: len(server.spares()) == 1, "the fork that waits")
    (spare,) = server.spares()
    assert psutil.Process(spare).name() == NAME
    if not waits:
        os.kill(spare, signal.SIGKILL)
        await until(lambda: spare not in server.spares(), "its end")
    pid, read_fd = fork(server, "tell", environment={"ONLY": "this"})
    assert (pid == spare) == waits
    with os.fdopen(read_fd) as told_file:
        told = json.loads(told_file.read())
    assert told["arguments"] == {"number": 7}
    assert told["environment"] == {"ONLY": "this"}
    assert (told["directory"], told["stdin"]) == ("/", "/dev/null")
    assert told["is_leader"]
    assert told["is_preloaded"]
    assert told["name"] == psutil.Process(server.pid).name()
    assert len(told["open"]) == 4, "the three standard streams and the one descriptor that it was given"


async def test_requests_in_a_row_are_answered_and_another_fork_is_made_afterwards(server: WarmProcess) -> None:
    await until(lambda: len(server.spares()) == 1, "the fork that waits")
    forks = [fork(server, "tell") for _ in range(3)]
    for _, read_fd in forks:
        with os.fdopen(read_fd) as told_file:
            assert json.loads(told_file.read())["arguments"] == {"number": 7}
    pids = {pid for pid, _ in forks}
    assert len(pids) == 3
    await until(lambda: len(set(server.spares()) - pids) == 1, "another fork that waits")


async def test_the_fork_that_waits_ends_with_a_server_that_is_killed(server: WarmProcess) -> None:
    await until(lambda: len(server.spares()) == 1, "the fork that waits")
    (spare,) = server.spares()
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not living([spare]), "its end")


async def test_children_live_on_when_the_server_ends(server: WarmProcess) -> None:
    pid, read_fd = fork(server, "wait")
    assert os.read(read_fd, 2) == b"up"
    server.close()
    assert living([pid]) == [pid]
    os.kill(pid, 9)
    await until(lambda: not living([pid]), "the end of the child")
    os.close(read_fd)


def test_it_ends_when_its_parent_lets_go(server: WarmProcess) -> None:
    server.close()
    assert not Path(server.socket_path).exists()
    with pytest.raises(GanglineError) as caught:
        forkserver.fork(server.socket_path, "x:y", {}, environment={}, directory="/")
    assert caught.value.code == "forkserver.unreachable"


def test_a_client_that_hangs_up_or_sends_noise_does_not_harm_it(server: WarmProcess) -> None:
    too_long = (frame.MAX_BODY_BYTES + 1).to_bytes(frame.HEADER_BYTES, "big")
    for noise in (b"", b"\0\0", frame.pack(b"oops"), too_long):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(server.socket_path)
            client.sendall(noise)
    assert forkserver.describe(server.socket_path, 5)["pid"] == server.pid


def test_finalizers_of_preloaded_modules_run_in_the_server_alone(server: WarmProcess) -> None:
    folder = Path(os.environ["PYTHONPATH"])
    _, read_fd = fork(server, "leave", environment=dict(os.environ))
    assert os.read(read_fd, 1) == b"", "the fork has ended"
    os.close(read_fd)
    assert (folder / "own").exists()
    assert not (folder / "inherited").exists()
    server.close()
    assert (folder / "inherited").exists()


async def test_children_are_reaped(server: WarmProcess) -> None:
    pids = []
    for _ in range(5):
        pid, read_fd = fork(server, "tell")
        pids.append(pid)
        os.close(read_fd)
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of all zombies")


def test_a_target_that_cannot_be_found_ends_its_child_only(server: WarmProcess) -> None:
    pid = forkserver.fork(server.socket_path, "no_such_module:x", {}, environment={"PATH": sys.prefix}, directory="/")
    assert pid > 0
    assert forkserver.describe(server.socket_path, 5)["pid"] == server.pid


def test_forks_that_end_by_themselves_are_made_less_and_less_often(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        made = forkserver.ForkServer(listener, 0, {})
        waits = []
        for _ in range(12):
            now = time.monotonic()
            made._note_lost_spare("it has ended")
            waits.append(round(made._spare_due_at - now, 1))
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == forkserver.LONGEST_SPARE_SECONDS
    assert capfd.readouterr().err.count("no fork is kept ready") == 1


async def test_a_preparation_that_fails_leaves_a_server_that_forks(tmp_path: Path) -> None:
    made = WarmProcess(tmp_path / "warm.sock", "", options=["--prepare", "no_such_module:x"])
    await until(lambda: not made.spares(), "the end of the fork that should have waited")
    pid = forkserver.fork(made.socket_path, "builtins:print", {}, environment={}, directory="/")
    await until(lambda: not living([pid]), "the end of the fork")
    made.close()
