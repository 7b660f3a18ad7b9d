"""Runs the ranks of a trial in processes of their own against a stand-in for the trial runner, which keeps what they
say. Ranks are forked from one process that has torch loaded, as in a cluster, so that a test takes a second."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gangline.cluster_info import CheckpointInfo, ClusterInfo, TrialInfo
from gangline.v1 import rank_pb2, types_pb2
from tests.support import rank_fork

_SECONDS = 60.0
# Of a connection that belongs to no rank.
_NO_RANK = -2


class StandInRunner:
    """Listens where ranks look for their trial runner. messages: of each rank, in the order they came. fusion: what it
    answers when asked what is remembered of tensor fusion."""

    def __init__(self, directory: Path, fusion: Sequence[types_pb2.FusionRecord] = ()) -> None:
        self.path = str(directory / "runner.sock")
        self._fusion = fusion
        self.messages: dict[int, list[rank_pb2.RankMessage]] = {}
        self._connections: list[socket.socket] = []
        self._changed = threading.Condition()
        self._num_reading = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, _SECONDS), f"{what} did not happen within {_SECONDS:g} s"

    def drain(self) -> None:
        """Returns once all messages of ranks that have ended are read. Connections are accepted in their order, so
        every earlier one was accepted when the last one is."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            try:
                last.connect(self.path)
                _say(last, rank_pb2.RankMessage(hello=rank_pb2.RankHello(rank=_NO_RANK)))
            except OSError:
                return  # it was closed
        self.wait_for(lambda: _NO_RANK in self.messages and not self._num_reading, "the end of all connections")
        del self.messages[_NO_RANK]

    def preempt(self, reason: str) -> None:
        """Asks all ranks to stop after a checkpoint."""
        for connection in self._connections:
            _say(connection, rank_pb2.RunnerMessage(preempt=rank_pb2.PreemptRank(reason=reason)))

    def close(self) -> None:
        """Goes away, as a runner that was killed. May be called twice."""
        for connection in [self._listener, *self._connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def of(self, rank: int, kind: str) -> list[Any]:
        """The messages of one kind that a rank sent, as in of(0, "metrics")."""
        messages = self.messages.get(rank, [])
        return [getattr(message, kind) for message in messages if message.WhichOneof("message") == kind]

    def metric(self, group: str, name: str) -> dict[int, float]:
        """Batches completed -> what the chief reported."""
        return {
            metrics.batches_completed: metrics.metrics[name]
            for metrics in self.of(0, "metrics")
            if metrics.group == group
        }

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            with self._changed:
                self._num_reading += 1
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        try:
            self._take(connection)
        finally:
            with self._changed:
                self._num_reading -= 1
                self._changed.notify_all()

    def _take(self, connection: socket.socket) -> None:
        rank = -1
        for message in _messages(connection):
            if message.HasField("fusion_query"):
                answer = rank_pb2.FusionAnswer(family=message.fusion_query.family, records=self._fusion)
                _say(connection, rank_pb2.RunnerMessage(fusion_answer=answer))
            with self._changed:
                if message.HasField("hello"):
                    rank = message.hello.rank
                self.messages.setdefault(rank, []).append(message)
                self._changed.notify_all()


def _say(connection: socket.socket, message: rank_pb2.RunnerMessage | rank_pb2.RankMessage) -> None:
    payload = message.SerializeToString()
    connection.sendall(struct.pack(">I", len(payload)) + payload)


def _messages(connection: socket.socket) -> Iterator[rank_pb2.RankMessage]:
    with connection.makefile("rb") as file:
        while header := file.read(4):
            yield rank_pb2.RankMessage.FromString(file.read(struct.unpack(">I", header)[0]))


@dataclass
class Trial:
    """Describes a trial to run."""

    code: dict[str, str]  # content by file name
    config: dict[str, Any]
    hparams: dict[str, Any] = field(default_factory=dict)
    size: int = 1  # number of ranks, all on this machine
    latest_checkpoint: CheckpointInfo | None = None
    seed: int = 7
    warnings: list[str] = field(default_factory=list)
    fusion: Sequence[types_pb2.FusionRecord] = ()  # remembered records
    python: Path = Path(sys.executable).parent  # folder of the python3 that a script starts by its name


class RunningTrial:
    """A trial whose ranks run. output(rank): what it printed so far, errors included."""

    def __init__(self, runner: StandInRunner, processes: list[BaseProcess], directory: Path) -> None:
        self.runner = runner
        self._processes = processes
        self._directory = directory

    def wait(self) -> list[int | None]:
        """The exit codes by rank, once all have ended."""
        deadline = time.monotonic() + _SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode is not None, f"{process.name} still runs after {_SECONDS:g} s"
        self.runner.drain()
        return [process.exitcode for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def output(self, rank: int) -> str:
        return (self._directory / f"rank{rank}.txt").read_text()

    def checkpoints(self) -> list[types_pb2.Checkpoint]:
        return self.runner.of(0, "checkpoint")

    def latest_checkpoint(self) -> CheckpointInfo:
        newest = self.checkpoints()[-1]
        return CheckpointInfo(newest.id, newest.url, newest.batches_completed)


@contextmanager
def start_trial(directory: Path, trial: Trial) -> Iterator[RunningTrial]:
    """Starts the ranks; at the end of the block nothing of them is left."""
    directory.mkdir(parents=True, exist_ok=True)
    code = directory / "code"
    code.mkdir()
    for name, text in trial.code.items():
        (code / name).write_text(text)
    runner = StandInRunner(directory, trial.fusion)
    context = rank_fork.context()
    store = _make_store(trial.size)
    processes = [
        context.Process(
            target=_become_rank,
            args=(_environment(trial, rank, runner, store.port if store else 0, directory), str(code), str(directory)),
            name=f"rank {rank}",
        )
        for rank in range(trial.size)
    ]
    running = RunningTrial(runner, list(processes), directory)
    try:
        for process in processes:
            process.start()
        yield running
    finally:
        running.kill()
        runner.close()


def run_trial(directory: Path, trial: Trial) -> tuple[RunningTrial, list[int | None]]:
    """Runs a trial to its end."""
    with start_trial(directory, trial) as running:
        codes = running.wait()
    return running, codes


def _make_store(size: int) -> Any:
    """Hosted here, as the nursery does for real ranks."""
    if size == 1:
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in __all__

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _environment(trial: Trial, rank: int, runner: StandInRunner, port: int, directory: Path) -> dict[str, str]:
    info = ClusterInfo(
        cluster_id="test",
        allocation_id="7.1.1",
        attempt=1,
        agent_id="a1",
        node_rank=0,
        num_nodes=1,
        slot_ids=[f"a1/{index}" for index in range(trial.size)],
        storage_url=str(directory / "storage"),
        code_directory=str(directory / "code"),
        trial=TrialInfo("7.1", 7, trial.seed, trial.hparams, trial.config),
        latest_checkpoint=trial.latest_checkpoint,
        warnings=trial.warnings,
        addresses=["127.0.0.1"],
        rank=rank,
        world_size=trial.size,
    )
    return {
        # What a script starts by the name of python3 is the Python of the ranks, as with a trial runner.
        "PATH": f"{trial.python}:{os.environ['PATH']}",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(trial.size),
        "LOCAL_WORLD_SIZE": str(trial.size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "GANGLINE_RUNNER_SOCKET": runner.path,
        "GANGLINE_CLUSTER_INFO": info.to_json(),
    }


def _become_rank(environment: dict[str, str], code: str, directory: str) -> None:
    from gangline.cluster_info import get_cluster_info
    from gangline.domain.entrypoint import program_of
    from gangline.launch import child
    from gangline.rank import entrypoint

    rank_fork.become_rank()
    path = Path(directory) / f"rank{environment['RANK']}.txt"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.update(environment)
    os.chdir(code)
    sys.path.insert(0, code)
    cluster = get_cluster_info()
    assert cluster is not None
    if program := program_of(cluster.trial.config["entrypoint"]):
        child.become(program)  # as the nursery does
    result = entrypoint.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)
