"""Leaves torch's process group: a teardown that always ends.

A process that ends with an open group may abort ("terminate called without an active exception"): a thread of gloo that
frees the tensors of the last collective needs Python's lock, and an interpreter that ends kills the threads that ask
for it. gloo ranks were also seen to hang on exit after finished training. Neither must change the outcome of the trial.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable
from contextlib import suppress

from gangline.cluster_info import get_cluster_info

# A teardown that takes longer counts as hanging, and the process ends without it.
TEARDOWN_SECONDS = 5.0
_at_exit: Callable[[], None] | None = None
_releases: list[Callable[[], None]] = []


def close_group(seconds: float = TEARDOWN_SECONDS) -> None:
    """Leaves the process group, and gives up after `seconds`. May be called when there is none."""
    import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

    if not dist.is_available() or not dist.is_initialized():
        return
    thread = threading.Thread(target=_destroy, name="gangline-teardown", daemon=True)
    thread.start()
    thread.join(seconds)


def close_group_at_exit(release: Callable[[], None], seconds: float = TEARDOWN_SECONDS) -> None:
    """Leaves the process group when the process ends, like close_group. Not earlier: ranks cannot make a second group,
    because the addresses of the first one are in the store. May be called twice. A process that the trial runner has
    started leaves the group by itself, after it has reported its end.

    release: lets go of the caller's groups. The threads of a group end with its last reference.
    """
    global _at_exit  # noqa: PLW0603  the process group is one of the whole process, too
    cluster = get_cluster_info()
    if cluster is not None and not cluster.runs_once:
        return
    _releases.append(release)
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


def keep_group_at_exit() -> None:
    """Cancels leaving the group at the end of the process, until close_group_at_exit is called again."""
    if _at_exit is not None:
        atexit.unregister(_at_exit)


def _destroy_after(is_ending: threading.Event) -> None:
    is_ending.wait()
    for release in _releases:
        release()
    _destroy()
    # Works that nobody waits for any more, and the cycles in which they lie, refer to groups.
    gc.collect()


def _destroy() -> None:
    import torch.distributed as dist  # noqa: PLC0415  as above

    # It fails where a peer has ended already, and there is no one to report that to.
    with suppress(RuntimeError, ValueError):
        if dist.is_initialized():
            dist.destroy_process_group()
