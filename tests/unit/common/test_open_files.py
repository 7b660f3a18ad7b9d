"""The share of a process's open files that a server's connections may take."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from services.common.connection import open_files


def test_few_open_files_leave_a_share_to_each_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "allow_open_files", lambda: 1024)
    with capture_logs() as logs:
        assert open_files.fit_connections(4096, 2, "the gRPC server") == 512
    assert [entry["event"] for entry in logs] == [
        "the gRPC server keeps at most 512 connections instead of 4096, because this process may open only 1024 files;"
        " raise LimitNOFILE (ulimit -Hn) to 8192"
    ]
    monkeypatch.setattr(open_files, "allow_open_files", lambda: 8192)
    with capture_logs() as logs:
        assert open_files.fit_connections(4096, 2, "the gRPC server") == 4096
    assert logs == []
