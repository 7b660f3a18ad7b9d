"""The folder of a runner's spool: made for the first record, and left to the drainer with what is not delivered."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from gangline.v1 import ingest_pb2, runner_pb2, types_pb2
from services.trial_runner.delivery import drainer, spool_folder
from services.trial_runner.delivery.spool_folder import SpoolFolder

RECORD = ingest_pb2.IngestRecord(log=ingest_pb2.LogLine(text="a"))


@pytest.fixture
def drained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders for which a drainer was started."""
    started: list[Path] = []
    monkeypatch.setattr(spool_folder, "start_drainer", started.append)
    return started


def _make(spools: Path) -> SpoolFolder:
    spec = runner_pb2.RunnerSpec(
        allocation=types_pb2.Allocation(id="7.1.1"),
        trial=types_pb2.Trial(id="7.1"),
        node_rank=2,
        token="t",
        gateway_addresses=["g1:1"],
    )
    return SpoolFolder(spec, "a1", spools)


def _target(spools: Path) -> dict[str, object]:
    target: dict[str, object] = json.loads((spools / "7.1.1-2" / "target.json").read_text())
    return target


def test_a_runner_without_records_leaves_nothing(tmp_path: Path, drained: list[Path]) -> None:
    folder = _make(tmp_path / "spool")
    assert folder.learn(["g2:1"])
    folder.close()
    assert not (tmp_path / "spool").exists()
    assert drained == []


def test_the_drainer_finds_the_newest_gateways(tmp_path: Path, drained: list[Path]) -> None:
    folder = _make(tmp_path)
    assert not folder.learn([])
    assert not folder.learn(["g1:1"])
    assert folder.learn(["g2:1"])
    folder.spool.append([RECORD])
    expected = {"spool_id": "7.1.1/2", "trial_id": "7.1", "addresses": ["g2:1"], "token": "t", "agent_id": "a1"}
    assert _target(tmp_path) == expected
    assert folder.learn(["g3:1", "g4:1"])
    assert (folder.gateways, _target(tmp_path)["addresses"]) == (["g3:1", "g4:1"], ["g3:1", "g4:1"])
    assert not drainer.has_orphans(tmp_path), "its runner lives"
    folder.close()
    assert drained == [tmp_path]


def test_a_delivered_spool_is_removed(tmp_path: Path, drained: list[Path]) -> None:
    folder = _make(tmp_path)
    folder.spool.append([RECORD])
    folder.spool.acknowledge(1)
    folder.close()
    assert list(tmp_path.iterdir()) == []
    assert drained == []


def test_a_target_that_a_full_disk_refused_is_written_at_the_end(
    tmp_path: Path, drained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = _make(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(drainer, "save_target", refuse)
        folder.spool.append([RECORD])
    folder.close()
    assert _target(tmp_path)["addresses"] == ["g1:1"]
    assert drained == [tmp_path]
