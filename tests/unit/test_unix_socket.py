"""A socket is bound and reached wherever it lies."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gangline import unix_socket


def count_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("depth", [0, 40])
def test_a_socket_is_reached_at_any_depth(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["deep"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / "a.sock")
    handles = count_handles()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        unix_socket.bind(listener, path)
        listener.listen()
        unix_socket.connect(connection, path)
        accepted, _ = listener.accept()
        with accepted:
            connection.sendall(b"x")
            assert accepted.recv(1) == b"x"
        assert [each.name for each in folder.iterdir()] == ["a.sock"]
    assert count_handles() == handles, "no handle is left open"


def test_a_socket_that_is_not_there_is_an_error_of_connect(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["deep"] * 40)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with pytest.raises(FileNotFoundError):
            unix_socket.connect(connection, str(deep / "a.sock"))
        deep.mkdir(parents=True)
        with pytest.raises(FileNotFoundError):
            unix_socket.connect(connection, str(deep / "a.sock"))
