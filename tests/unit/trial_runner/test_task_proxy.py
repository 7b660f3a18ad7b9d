"""The runner's way to the socket of its task."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.trial_runner.delivery.task_proxy import TaskProxy


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "task.sock"))
        listener.listen()
        yield listener


def _proxy(folder: Path, uid: int) -> TaskProxy:
    return TaskProxy("1.1.1", "token", folder / "task.sock", folder / "key", uid)


async def test_it_connects_to_the_socket_of_the_account_of_the_task(listener: socket.socket, tmp_path: Path) -> None:
    proxy = _proxy(tmp_path, os.geteuid())
    try:
        connection = await proxy._connect()
        connection.close()
        await proxy._is_listening.wait()
    finally:
        await proxy.close()


async def test_it_refuses_the_socket_of_another_account(listener: socket.socket, tmp_path: Path) -> None:
    """A task could put a link to a socket of another account in the place of its own."""
    proxy = _proxy(tmp_path, os.geteuid() + 1)
    try:
        with pytest.raises(PermissionError, match="it belongs to another account"):
            await proxy._connect()
        assert not proxy._is_listening.is_set()
    finally:
        await proxy.close()


async def test_a_task_without_a_socket_is_not_offered(tmp_path: Path) -> None:
    proxy = _proxy(tmp_path, os.geteuid())
    proxy.learn(["127.0.0.1:1"])
    try:
        with pytest.raises(FileNotFoundError):
            await proxy._connect()
        assert not proxy._is_listening.is_set()
    finally:
        await proxy.close()
