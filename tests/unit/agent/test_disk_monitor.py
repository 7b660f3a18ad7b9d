"""When an agent says that its state directory takes no writes, and when that is over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from services.agent.machine import disk_monitor
from services.agent.machine.disk_monitor import DiskMonitor


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The findings of the next checks, the first one first; no finding means that the disk is well."""
    problems: list[str] = []
    monkeypatch.setattr(disk_monitor, "check_folder", lambda _: problems.pop(0) if problems else "")
    return problems


async def test_one_bad_check_is_told_and_good_ones_in_a_row_end_it(tmp_path: Path, problems: list[str]) -> None:
    told: list[str] = []
    monitor = DiskMonitor(tmp_path, 1.0, 3, lambda: None, told.append)
    await monitor.check_once()
    assert told == []
    problems += ["full", "full"]
    await monitor.check_once()
    assert told == ["full"]
    # Two good ones, a bad one, two good ones: not three in a row.
    for check in ("", "", "full", "", ""):
        problems += [check, check] if check else []
        await monitor.check_once()
    assert told == ["full"]
    await monitor.check_once()
    assert told == ["full", ""]


async def test_room_that_can_be_made_keeps_the_agent_in_use(tmp_path: Path, problems: list[str]) -> None:
    told: list[str] = []
    made: list[bool] = []
    monitor = DiskMonitor(tmp_path, 1.0, 3, lambda: made.append(True), told.append)
    problems += ["full", ""]
    await monitor.check_once()
    assert (told, made) == ([], [True])


async def test_a_disk_that_hangs_is_told_and_not_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    calls: list[Path] = []
    goes_on = threading.Event()

    def hang(folder: Path) -> str:
        calls.append(folder)
        goes_on.wait(30)
        return ""

    monkeypatch.setattr(disk_monitor, "check_folder", hang)
    monkeypatch.setattr(disk_monitor, "CHECK_SECONDS", 0.05)
    monitor = DiskMonitor(tmp_path, 1.0, 1, lambda: None, told.append)
    for _ in range(2):
        await monitor.check_once()
    assert told == [f"its state directory {tmp_path} does not answer within 0.05 s; look at the disk"]
    assert len(calls) == 1
    goes_on.set()
    monkeypatch.setattr(disk_monitor, "CHECK_SECONDS", 20.0)
    await monitor.check_once()
    assert told[1:] == [""]


async def test_size_of_the_directory_is_measured(tmp_path: Path) -> None:
    (tmp_path / "code" / "1.1").mkdir(parents=True)
    (tmp_path / "code" / "1.1" / "model.py").write_bytes(b"x" * 1000)
    (tmp_path / "epoch").write_bytes(b"7")
    (tmp_path / "link").symlink_to("/etc")
    monitor = DiskMonitor(tmp_path, 1.0, 1, lambda: None, lambda _: None)
    await monitor.check_once()
    link_bytes = len("/etc")
    assert REGISTRY.get_sample_value("gangline_agent_state_directory_bytes") == 1001 + link_bytes
    free = REGISTRY.get_sample_value("gangline_agent_state_directory_disk_free_bytes") or 0
    assert 0 < free <= (REGISTRY.get_sample_value("gangline_agent_state_directory_disk_bytes") or 0)
