"""Lets training programs take turns on one machine, block by block, and reports the cost of each block.

Programs that `benchmarks/contest.py` compares import it; `benchmarks/turnstile.py` is the other end. A block is a fixed
number of training steps. Between two blocks all ranks wait, so that only one side uses the processors at any time.
"""

from __future__ import annotations

import json
import os
import socket
import time

import torch
import torch.distributed as dist


class Turn:
    """Represents one side at the turnstile. Every rank creates one and calls `next_block` at the same steps.

    path: the benchmark's unix socket. side: the name of this program.
    """

    def __init__(self, path: str, side: str) -> None:
        self._rank = dist.get_rank()
        self._started = 0.0
        self._started_cpu = 0.0
        self._is_open = False
        pids = [0] * dist.get_world_size()
        dist.all_gather_object(pids, os.getpid())
        if self._rank == 0:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(path)
            self._lines = self._socket.makefile("r")
            self._send({"side": side, "pids": pids})

    def next_block(self) -> None:
        """Ends the running block, if there is one, waits for this side's turn and begins the next."""
        if self._is_open:
            self._report()
        if self._rank == 0:
            self._send({"ready": True})
            self._lines.readline()
        dist.barrier()
        self._is_open = True
        self._started_cpu = time.process_time()
        self._started = time.perf_counter()

    def _report(self) -> None:
        wall = time.perf_counter() - self._started
        cost = torch.tensor([time.process_time() - self._started_cpu])
        dist.all_reduce(cost)
        if self._rank == 0:
            self._send({"wall_seconds": wall, "cpu_seconds": cost.item()})

    def _send(self, message: dict[str, object]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
