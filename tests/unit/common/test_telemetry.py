"""Logs, the metrics endpoint, the ready file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import services.common.etcd.metrics  # noqa: F401 - registers what is looked for
from gangline.errors import GanglineError
from services.common.connection.scrape_server import MAX_CONNECTIONS
from services.common.telemetry import serve_metrics, write_ready_file

LOG_PROGRAM = """
import logging, structlog, sys
from services.common.telemetry import configure_logging
configure_logging("scheduler", sys.argv[1], "info")
log = structlog.get_logger("gangline.test")
log.debug("unseen")
log.info("seen", experiment_id=7)
logging.getLogger("library").warning("from %s", "elsewhere")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def _log(form: str) -> str:
    command = [sys.executable, "-c", LOG_PROGRAM, form]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert finished.stdout == ""
    return finished.stderr


def test_json_logs_are_one_object_a_line() -> None:
    entries = [json.loads(line) for line in _log("json").splitlines()]
    assert [entry["event"] for entry in entries] == ["seen", "from elsewhere", "failed"]
    assert entries[0]["experiment_id"] == 7
    assert {entry["service"] for entry in entries} == {"scheduler"}
    assert [entry["level"] for entry in entries] == ["info", "warning", "error"]
    assert "ZeroDivisionError" in entries[2]["exception"]
    assert all("timestamp" in entry for entry in entries)


def test_text_logs_are_for_reading() -> None:
    text = _log("text")
    assert "seen" in text
    assert "experiment_id=7" in text
    assert "unseen" not in text
    assert "ZeroDivisionError" in text


def test_importing_configures_nothing() -> None:
    handlers = list(logging.getLogger().handlers)
    __import__("services.common.telemetry")
    assert logging.getLogger().handlers == handlers


def test_metrics_are_served_on_a_free_port() -> None:
    address = serve_metrics("127.0.0.1:0")
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        assert b"gangline_etcd_rotations_total" in answer.read()


def test_idle_connections_of_one_address_keep_no_other_from_the_metrics() -> None:
    """Of more connections than the server keeps, the oldest of the first address end."""
    address = serve_metrics("127.0.0.1:0")
    target = ("127.0.0.1", int(address.rpartition(":")[2]))
    with contextlib.ExitStack() as held:
        other = held.enter_context(socket.create_connection(target, 20, ("127.0.0.3", 0)))
        idle = [
            held.enter_context(socket.create_connection(target, 20, ("127.0.0.2", 0)))
            for _ in range(MAX_CONNECTIONS + 8)
        ]
        assert [connection.recv(1) for connection in idle[:9]] == [b""] * 9
        other.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert other.recv(12) == b"HTTP/1.0 200"


def test_a_taken_metrics_port_names_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(GanglineError, match="choose another with --metrics-listen") as caught:
            serve_metrics(listen)
    assert caught.value.code == "server.port_in_use"


def test_ready_file_names_only_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, grpc="127.0.0.1:1", http=None)
    assert json.loads(path.read_text()) == {"pid": os.getpid(), "grpc": "127.0.0.1:1"}
    assert list(tmp_path.iterdir()) == [path]
    write_ready_file(None, grpc="127.0.0.1:1")
