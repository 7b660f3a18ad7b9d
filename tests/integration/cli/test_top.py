"""`gangline top` on a terminal of its own, against a stand-in gateway over the network."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from gangline.v1 import gateway_pb2, ingest_pb2, types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import TOKEN, StandInGateway

COMMAND = str(Path(sys.executable).with_name("gangline"))
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _task(number: int, name: str, owner: str) -> gateway_pb2.Task:
    trial_id = f"{number}.1"
    member = types_pb2.Member(agent_id="agent-1", slot_ids=[f"agent-1/{number}"])
    return gateway_pb2.Task(
        trial=types_pb2.Trial(id=trial_id, experiment_id=number, number=1, state=types_pb2.STATE_RUNNING),
        experiment_name=name,
        owner=owner,
        progress=ingest_pb2.ProgressPoint(batches_completed=30, batches_total=120),
        allocation=types_pb2.Allocation(
            id=f"{trial_id}.1", trial_id=trial_id, experiment_id=number, pool="default", members=[member],
            state=types_pb2.STATE_RUNNING,
        ),
    )  # fmt: skip


@pytest.fixture
def tasks(gateway: StandInGateway) -> None:
    gateway.tasks = [_task(1, "digits", "ann"), _task(2, "a-very-long-name-" * 8, "bob")]


class Terminal:
    """A program on a terminal of 80 columns and 24 lines."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._own, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            arguments, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm-256color"}
        )
        os.close(theirs)
        self.output = ""

    def type(self, text: str) -> None:
        self.output = ""
        os.write(self._own, text.encode())

    def wait(self, holds: Callable[[str], bool], what: str, seconds: float = 30) -> None:
        """Reads until the text since the last typing is as wanted."""
        deadline = time.monotonic() + seconds
        while not holds(_ESCAPE.sub("", self.output)):
            assert time.monotonic() < deadline, f"no {what} in {self.output!r}"
            if select.select([self._own], [], [], 0.1)[0]:
                self.output += os.read(self._own, 1 << 16).decode(errors="replace")

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._own)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self._own)


@pytest.fixture
def terminal(gateway: StandInGateway, tasks: None, tmp_path: Path) -> Iterator[Terminal]:
    login = {"GANGLINE_HOME": str(tmp_path), "GANGLINE_GATEWAY": gateway.address, "GANGLINE_TOKEN": TOKEN}
    running = Terminal([COMMAND, "top", "--interval", "0.2"], {**os.environ, **login})
    yield running
    running.close()


def test_keys_sort_filter_and_quit(terminal: Terminal, gateway: StandInGateway) -> None:
    terminal.wait(lambda text: "digits" in text and "a-very-long-" in text and "25%" in text, "both tasks")
    terminal.type("s")
    terminal.wait(lambda text: "sorted by owner" in text, "the other order")
    terminal.type("/ann\r")
    terminal.wait(lambda text: text.rpartition("filter: ann  ")[2].count(".1 ") == 1, "one task")
    gateway.tasks = [_task(7, "cats", "ann")]
    terminal.wait(lambda text: "cats" in text, "what is new")
    terminal.type("q")
    assert terminal.process.wait(30) == 0
    terminal.wait(lambda text: "\x1b[?1049l" in terminal.output, "the terminal as it was")


def test_in_a_pipe_it_is_plain_and_whole(cli: Cli, tasks: None) -> None:
    ran = cli("top", "--sort", "owner")
    assert ran.status == 0
    assert "\x1b" not in ran.out
    lines = ran.out.splitlines()
    assert lines[0].endswith("2 running, 0 waiting")
    assert [line.split()[:3:2] for line in lines if line.startswith(("1.1", "2.1"))] == [["1.1", "ann"], ["2.1", "bob"]]
    assert "a-very-long-name-" * 8 in ran.out


def test_json_and_filter(cli: Cli, tasks: None) -> None:
    [task] = json.loads(cli("top", "--filter", "bob", "--json").out)["tasks"]
    assert (task["owner"], task["progress"]["batches_total"]) == ("bob", 120)


def test_unknown_order_is_refused(cli: Cli) -> None:
    ran = cli("top", "--sort", "age")
    assert (ran.status, ran.err) == (
        2, "error: --sort age is no order; choose one of queue, owner, experiment, slots, progress, state\n",
    )  # fmt: skip
