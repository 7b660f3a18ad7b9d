"""A fork server as an agent has one, forked from one of the pair of warm_program.py: it need not import torch, or the
services, anew. Called by the tests of trial runners."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path

from tests.support.warm_program import await_shown, fork_template

_STANDARD_ERROR = 2


class WarmTemplate:
    """server: the socket of the fork server from which this one is forked. options: of its command line. place: the
    process whose namespaces it shall have; by default those of this process."""

    def __init__(self, server: str, socket_path: Path, options: Sequence[str] = (), place: int | None = None) -> None:
        self.socket_path = str(socket_path)
        words = ["--socket", self.socket_path, *options]
        pid, self._parent = fork_template(server, words, _STANDARD_ERROR, place or os.getpid())
        self._end = os.pidfd_open(pid)
        await_shown(pid, self.socket_path)
        while not socket_path.exists():
            assert not select.select([self._end], [], [], 0.01)[0], "the fork server ended"

    def close(self) -> None:
        os.close(self._parent)
        assert select.select([self._end], [], [], 10.0)[0], "the fork server goes on without its parent"
        os.close(self._end)
