"""The network and the mounts of another process, as a fork takes them that cannot be started by a command in front.

A test says where a service belongs by a command, such as `ip netns exec NAME`, that runs a program there. Called by
fleet.py and warm_program.py. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_KINDS = ("net", "mnt")


@contextmanager
def held_namespaces(prefix: Sequence[str]) -> Iterator[int]:
    """Yields the pid of a process that the prefix has started, until the context ends. prefix: a command that enters
    namespaces and executes the words behind it."""
    command = [*prefix, "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdin is not None
        assert own.stdout is not None
        assert own.stdout.readline() == b"\n", f"{prefix} starts nothing"
        yield own.pid
        own.stdin.close()


def enter_namespaces(pid: int) -> None:
    """Moves this process, which must have one thread, to the network and the mounts of another one. The working
    directory keeps its path. Where both are this process's own it does nothing, for which no rights are needed."""
    directory = Path.cwd()
    descriptors = []
    for kind in _KINDS:
        theirs = Path(f"/proc/{pid}/ns/{kind}")
        if not theirs.samefile(f"/proc/self/ns/{kind}"):
            descriptors.append(os.open(theirs, os.O_RDONLY | os.O_CLOEXEC))
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in descriptors:
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {pid}")
        os.close(descriptor)
    os.chdir(directory)
