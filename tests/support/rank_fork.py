"""The process that ranks of tests are forked from: it has torch loaded (preload.py), and belongs to one test process.

It ends when no process has a certain pipe open any more. The test process opens the pipe, and multiprocessing gives it
to each rank. A rank closes it, and ends with the process that it was forked from. So nothing stays behind a test run
that is killed: ranks that wait for one another would go on, at a full core. Called by gang.py and rank.py.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any

from gangline.launch import child


def context() -> ForkServerContext:
    """Returns what starts ranks as forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preload"])
    return context


def become_rank() -> None:
    """Is called first in the new process."""
    import torch

    # While this process has the pipe open, its parent goes on, so os.getppid() names it.
    child.die_with_parent(os.getppid())
    server: Any = forkserver._forkserver  # its pipe is private
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    # As in a rank of a trial runner, collections leave out what was loaded before the fork.
    gc.freeze()
    torch.set_num_threads(1)
    # The fork server leaves its own way to start processes, with which workers of a data loader would load torch anew.
    multiprocessing.set_start_method(None, force=True)
