"""Warm rank processes: a gang that does one small work after another, and is started anew where one has failed.

Owns the processes and their pipes. The work is a function of a module, which gets one order for each
call. Ranks are forked from a process that has torch loaded, so a new gang takes less than a second.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

_PRELOADS = ["torch", "torch._dynamo", "gangline.pytorch"]
Work = Callable[[Any], Any]
# Orders before a gang is started anew. The process groups of past orders stay in a rank, and the thread of each gloo
# group wakes up 100 times a second: after 100 orders these threads take more of a processor than the work.
_MOST_ORDERS = 10
# How long the other ranks may go on where one has failed.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank makes of an order. kind: `done` with the value, `refused` with the line in text, `error` with the
    traceback, or `hang`."""

    kind: str
    text: str = ""
    value: Any = None


class Gang:
    """So many ranks of one gloo group. preloads: modules that all ranks have from the beginning."""

    def __init__(self, size: int, work: Work, preloads: Sequence[str] = ()) -> None:
        self._size = size
        self._folder = Path(tempfile.mkdtemp(prefix="gl-programs-"))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOADS, *preloads])
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            here, there = context.Pipe()
            arguments = (rank, size, str(self._folder), work, there)
            process = context.Process(target=_be_rank, args=arguments, name=f"rank {rank}", daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def begin(self, order: Any) -> None:
        for pipe in self._pipes:
            pipe.send(order)

    def answers(self, limit_seconds: float) -> list[Answer]:
        """Returns what the ranks have come to, in the order in which they did. A rank that has not answered at the
        limit, or shortly behind the first failure, hangs."""
        answers: list[Answer] = []
        waiting = set(self._pipes)
        deadline = time.monotonic() + limit_seconds
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                return answers + [Answer("hang")] * len(waiting)
            for pipe in ready:
                assert isinstance(pipe, Connection)
                waiting.discard(pipe)
                answers.append(_receive(pipe))
                if answers[-1].kind != "done":
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        return answers

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Gangs:
    """The gangs of all sizes, each started when it is needed."""

    def __init__(self, work: Work, preloads: Sequence[str] = ()) -> None:
        self._work, self._preloads = work, preloads
        self._by_size: dict[int, Gang] = {}
        self._orders: dict[int, int] = {}

    def begin(self, size: int, order: Any) -> None:
        if self._orders.get(size, 0) >= _MOST_ORDERS:
            self.renew(size)
        if size not in self._by_size:
            self._by_size[size] = Gang(size, self._work, self._preloads)
            self._orders[size] = 0
        self._orders[size] += 1
        self._by_size[size].begin(order)

    def answers(self, size: int, limit_seconds: float) -> list[Answer]:
        """Waits for the ranks. After a failure they end, so that no trace of it reaches the next order."""
        answers = self._by_size[size].answers(limit_seconds)
        if any(answer.kind != "done" for answer in answers):
            self._by_size.pop(size).end()
        return answers

    def renew(self, size: int) -> None:
        """Ends the gang that has had other orders before."""
        if size in self._by_size:
            self._by_size.pop(size).end()

    def end(self) -> None:
        for gang in self._by_size.values():
            gang.end()
        self._by_size.clear()


def _receive(pipe: Connection) -> Answer:
    try:
        kind, text, values = pipe.recv()
    except (EOFError, OSError):
        return Answer("error", "the process of a rank ended")
    return Answer(kind, text, pickle.loads(values) if values else None)


def _be_rank(rank: int, size: int, folder: str, work: Work, pipe: Connection) -> None:
    import torch.distributed as dist  # noqa: PLC0415  only ranks need it

    environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.environ.update(GROUP_WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="")
    tempfile.tempdir = folder
    os.chdir(folder)
    log = os.open(f"{folder}/rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  a descriptor has no path
    torch.set_num_threads(1)
    multiprocessing.set_start_method(None, force=True)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        while True:
            pipe.send(_answer(work, pipe.recv()))
    except (EOFError, OSError):
        os._exit(0)


def _answer(work: Work, order: Any) -> tuple[str, str, bytes]:
    """Returns the parts of an Answer. A pipe would pass tensors on in shared memory, hence the bytes."""
    from gangline.errors import GanglineError  # noqa: PLC0415  only ranks need it

    try:
        value = work(order)
    except GanglineError as error:
        return "refused", f"{error.code}: {error.message}", b""
    except BaseException:  # noqa: BLE001  whatever it is, the report has it
        return "error", traceback.format_exc(), b""
    return "done", "", pickle.dumps(value)
