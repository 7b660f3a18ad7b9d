"""Free ports for the workers of a script's own launcher."""

from __future__ import annotations

import random
import socket

import pytest

from gangline.errors import GanglineError
from gangline.launch import chief_port


def test_both_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as first, socket.socket() as second:
        port = chief_port.find_ports("127.0.0.1")
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.1", port + 1))
        # The second of a pair that is taken leaves the pair out.
        offered = iter([port, port - 1, port + 1] + [port] * 200)
        monkeypatch.setattr(random, "randrange", lambda _low, _end: next(offered))
        with pytest.raises(GanglineError, match="found no two free ports"):
            chief_port.find_ports("127.0.0.1")
