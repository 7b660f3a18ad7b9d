"""A stand-in gateway and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.client import Client
from tests.support.stand_in_gateway import TOKEN, StandInGateway


@pytest.fixture
def gateway() -> Iterator[StandInGateway]:
    server = StandInGateway()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    with Client(gateway.address, TOKEN, retry_seconds=5) as connected:
        yield connected


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "model_def.py").write_text("class Digits(Base):\n    pass\n")
    return folder
