"""The records that the drainer takes over, and when it exits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gangline.v1 import ingest_pb2
from services.trial_runner.delivery import drainer
from services.trial_runner.delivery.spool import Spool


def leave_spool(spools: Path, name: str) -> Path:
    folder = spools / name
    spool = Spool(folder)
    spool.append([ingest_pb2.IngestRecord(log=ingest_pb2.LogLine(text="a"))])
    spool.close()
    drainer.save_target(folder, spool_id="7.1.1/0", trial_id="7.1", addresses=["127.0.0.1:1"], token="alloc:7.1.1:x")
    return folder


def test_a_spool_with_an_owner_is_no_orphan(tmp_path: Path) -> None:
    assert not drainer.has_orphans(tmp_path / "none")
    folder = leave_spool(tmp_path, "7.1.1-0")
    assert drainer.has_orphans(tmp_path)
    fd = drainer.claim(folder)
    assert fd is not None
    assert drainer.claim(folder) is None
    assert not drainer.has_orphans(tmp_path)
    os.close(fd)
    assert drainer.has_orphans(tmp_path)


def test_the_token_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    folder = leave_spool(tmp_path, "7.1.1-0")
    assert (folder / "target.json").stat().st_mode & 0o077 == 0


async def test_it_leaves_with_the_agent_and_keeps_what_it_could_not_deliver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainer, "AGENTLESS_SECONDS", 0.2)
    monkeypatch.setattr(drainer, "RESCAN_SECONDS", 0.05)
    folder = leave_spool(tmp_path / "spool", "7.1.1-0")
    (tmp_path / "agent.lock").write_text(f"{2**22}\n")
    began_at = time.monotonic()
    await drainer.drain_all(tmp_path / "spool")
    assert 0.2 <= time.monotonic() - began_at < 5
    assert Spool(folder).num_waiting == 1


async def test_a_spool_that_is_too_old_or_belongs_nowhere_is_deleted(tmp_path: Path) -> None:
    old, nameless = leave_spool(tmp_path, "7.1.1-0"), leave_spool(tmp_path, "7.1.2-0")
    long_ago = time.time() - drainer.MAX_AGE_SECONDS - 1
    os.utime(old / "target.json", (long_ago, long_ago))
    (nameless / "target.json").write_text("{}")
    for path in nameless.iterdir():
        os.utime(path, (long_ago, long_ago))
    await drainer.drain_all(tmp_path)
    assert not drainer.has_orphans(tmp_path)
    assert not old.exists()
    assert not nameless.exists()


@pytest.mark.parametrize("target", ["", "{}", None])
async def test_records_whose_target_cannot_be_read_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    monkeypatch.setattr(drainer, "AGENTLESS_SECONDS", 0.2)
    monkeypatch.setattr(drainer, "RESCAN_SECONDS", 0.05)
    folder = leave_spool(tmp_path / "spool", "7.1.1-0")
    if target is None:
        (folder / "target.json").unlink()
    else:
        (folder / "target.json").write_text(target)
    await drainer.drain_all(tmp_path / "spool")
    assert Spool(folder).num_waiting == 1
