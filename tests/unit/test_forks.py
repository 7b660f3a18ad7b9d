"""A fork of a test's process leaves alone what earlier tests of that process have left to be collected."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import grpc.aio


async def test_a_fork_does_not_collect_a_channel_of_its_parent() -> None:
    gc.disable()
    try:
        left: dict[str, Any] = {"channel": grpc.aio.insecure_channel("127.0.0.1:1")}
        left["itself"] = left
        del left
        fork = multiprocessing.get_context("fork").Process(target=gc.collect)
        fork.start()
        fork.join(60)
        fork.kill()
        fork.join()
        assert fork.exitcode == 0
    finally:
        gc.enable()
        gc.collect()
