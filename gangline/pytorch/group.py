"""Makes this rank's device and process group before the trial, and destroys the group after it.

Owns the choice of the backend (NCCL on GPUs, gloo on CPUs) and a teardown that always ends. gloo ranks were seen to
hang on exit after finished training, which must not change their outcome.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

# A teardown that takes longer counts as hanging, and the process ends without it.
TEARDOWN_SECONDS = 5.0
_at_exit: Callable[[], None] | None = None


def choose_device() -> torch.device:
    """Returns the GPU of this local rank, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def num_ranks() -> int:
    """Returns the number of ranks that the environment names, also before the process group is made."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def open_group(device: torch.device, timeout: timedelta | None = None) -> bool:
    """Joins the default process group where the environment names more than one rank. Returns True when it was made
    here, now or in an earlier call. timeout: of its collectives; None for torch's own."""
    if num_ranks() < 2:
        return False
    if dist.is_initialized():
        return _keep_at_exit()
    # Beside NCCL, gloo carries all data that is no training data: metrics, objects, the agreement whether to stop.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    return True


def close_group(seconds: float = TEARDOWN_SECONDS) -> None:
    """Leaves the process group, and gives up after `seconds`. May be called when there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return
    thread = threading.Thread(target=_destroy, name="gangline-teardown", daemon=True)
    thread.start()
    thread.join(seconds)


def close_group_at_exit(seconds: float = TEARDOWN_SECONDS) -> None:
    """Leaves the process group when the process ends, like close_group. Not earlier: ranks cannot make a second group,
    because the addresses of the first one are in the store. May be called twice."""
    global _at_exit  # noqa: PLW0603  the process group is one of the whole process, too
    if _at_exit is None:
        is_ending = threading.Event()
        # Started now, because newer Pythons start no thread while they end.
        thread = threading.Thread(target=_destroy_after, args=(is_ending,), name="gangline-teardown", daemon=True)
        thread.start()

        def leave() -> None:
            is_ending.set()
            thread.join(seconds)

        _at_exit = leave
    atexit.register(_at_exit)


def _destroy_after(is_ending: threading.Event) -> None:
    is_ending.wait()
    _destroy()


def _keep_at_exit() -> bool:
    """Cancels leaving the group at the end of the process, until the block that begins has ended well. Returns whether
    it was planned."""
    if _at_exit is None:
        return False
    atexit.unregister(_at_exit)
    return True


def _destroy() -> None:
    # It fails where a peer has ended already, and there is no one left to report that to.
    with suppress(RuntimeError, ValueError):
        dist.destroy_process_group()
