"""Serves the turnstile at which training programs alternate, and collects the cost of each block. Starts programs that
come to it, and ends them.

The other end is workload/turn.py. A side that has no more blocks closes its connection.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.process import end_process

WORKLOAD = Path(__file__).parent / "workload"
START_SECONDS = 120.0
# The end of each program's output that is shown after a failure.
SAID_CHARACTERS = 2000


@dataclass(slots=True)
class Side:
    """Represents one program: its connection, the pids of its ranks, and the blocks that it has reported."""

    connection: socket.socket
    pids: list[int] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    # returns the processor time so far of what runs for the program beside its ranks
    find_beside: Callable[[], float] = lambda: 0.0
    beside_seconds: list[float] = field(default_factory=list)  # that processor time for each block
    _lines: IO[str] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = self.connection.makefile("r")

    def receive(self) -> dict[str, Any]:
        """Returns the next message. Raises ConnectionError when the program has disconnected."""
        line = self._lines.readline()
        if not line:
            raise ConnectionError("a training program left the turnstile early; its output says why")
        message: dict[str, Any] = json.loads(line)
        return message

    def run_block(self) -> None:
        """Lets this side run one block, from its `ready` to its report."""
        before = self.find_beside()
        self.connection.sendall(b"go\n")
        report = self.receive()
        self.beside_seconds.append(self.find_beside() - before)
        self.wall_seconds.append(report["wall_seconds"])
        self.cpu_seconds.append(report["cpu_seconds"])
        assert self.receive() == {"ready": True}

    def close(self) -> None:
        """Lets the program continue without further turns."""
        self.connection.close()


class Turnstile:
    """Listens on a unix socket at `path`; each program connects with its rank 0."""

    def __init__(self, path: Path, deadline_seconds: float) -> None:
        self.path = path
        self._deadline_seconds = deadline_seconds
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()

    def admit(self) -> tuple[str, Side]:
        """Returns the next program that connects, waiting before its first block. Raises TimeoutError."""
        self._socket.settimeout(self._deadline_seconds)
        connection, _ = self._socket.accept()
        connection.settimeout(self._deadline_seconds)
        side = Side(connection)
        hello = side.receive()
        name, side.pids = str(hello["side"]), hello["pids"]
        assert side.receive() == {"ready": True}
        return name, side

    def close(self) -> None:
        self._socket.close()


@contextmanager
def programs_at_turnstile(commands: Mapping[str, Sequence[str]], options: Sequence[str]) -> Iterator[dict[str, Side]]:
    """Starts all programs in a folder with the files of workload/, each waiting before its first block; they are ended
    with the context. The options and `--turnstile PATH` follow each command."""
    with tempfile.TemporaryDirectory(prefix="gl-turn-") as folder:
        # The programs write their files into the folder in which they run.
        for file in WORKLOAD.glob("*.py"):
            Path(folder, file.name).symlink_to(file)
        turnstile = Turnstile(Path(folder, "turn"), START_SECONDS)
        options = [*options, "--turnstile", str(turnstile.path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with ExitStack() as stack:
            stack.callback(turnstile.close)
            processes: list[subprocess.Popen[bytes]] = []
            stack.callback(lambda: end_process(*processes))
            for name, command in commands.items():
                output = stack.enter_context(Path(folder, f"{name}.txt").open("wb"))
                processes.append(
                    subprocess.Popen([*command, *options], cwd=folder, env=environment, stdout=output, stderr=output)
                )
            try:
                admitted = dict(turnstile.admit() for _ in commands)
                yield {name: admitted[name] for name in commands}
            except (TimeoutError, ConnectionError):
                for name in commands:
                    print(f"{name} said last:\n{Path(folder, f'{name}.txt').read_text()[-SAID_CHARACTERS:]}")
                raise
