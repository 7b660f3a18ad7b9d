"""A dataset that is processed batch by batch, on several ranks and after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from gangline.cluster_info import ENVIRONMENT_KEY, CheckpointInfo, ClusterInfo, TrialInfo
from gangline.core import CheckpointContext, DistributedContext, PreemptContext
from gangline.determined.batch_process import TorchBatchProcessor, TorchBatchProcessorContext, torch_batch_process
from gangline.errors import GanglineError
from tests.support.world import in_ranks

DATA = TensorDataset(torch.arange(11))


class Recording(TorchBatchProcessor):
    """Keeps what it was given, by rank. seen: rank -> (batch_idx, records)."""

    seen: dict[int, list[tuple[int, list[int]]]]
    calls: list[str]

    def __init__(self, context: TorchBatchProcessorContext) -> None:
        self.context = context
        self.total: Any = context.wrap_reducer(sum, name="total")

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        records = [int(number) for number in self.context.to_device(batch)[0]]
        self.seen.setdefault(self.context.get_distributed_rank(), []).append((batch_idx, records))
        self.total.update(sum(records))

    def on_checkpoint_start(self) -> None:
        self.calls.append("checkpoint")

    def on_finish(self) -> None:
        self.calls.append("finish")
        with self.context.upload_path() as folder:
            (folder / "own").write_text(str(self.context.get_distributed_rank()))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recording, "seen", {}, raising=False)
    monkeypatch.setattr(Recording, "calls", [], raising=False)
    return tmp_path


def metadata_in(folder: Path) -> list[dict[str, Any]]:
    documents = [json.loads(path.read_text()) for path in folder.glob("checkpoints/*/metadata.json")]
    return sorted(documents, key=lambda document: int(document["steps_completed"]))


def test_batches_go_to_the_ranks_in_turn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(distributed: DistributedContext) -> None:
        torch_batch_process(Recording, DATA, 2, checkpoint_interval=2, distributed_context=distributed)

    in_ranks(2, work)
    assert Recording.seen == {0: [(0, [0, 1]), (1, [4, 5]), (2, [8, 9])], 1: [(0, [2, 3]), (1, [6, 7]), (2, [10])]}
    assert sorted(Recording.calls) == ["checkpoint"] * 4 + ["finish"] * 2
    assert [document["steps_completed"] for document in metadata_in(folder)] == [2, 3]
    assert capsys.readouterr().out.split() == ["validation", "batch", "3", "total", "55"]
    assert sorted(path.read_text() for path in folder.glob("batch_output/*/rank_*/own")) == ["0", "1"]


def on_cluster(monkeypatch: pytest.MonkeyPatch, folder: Path, latest: CheckpointInfo | None) -> None:
    trial = TrialInfo("7.1", 7, 1, {"width": 3}, {})
    info = ClusterInfo("c", "7.1.2", 2, "a1", 0, 1, ["a1/0"], str(folder), "/code", trial, latest)
    monkeypatch.setenv(ENVIRONMENT_KEY, info.to_json())


@pytest.mark.parametrize(("old_size", "seen"), [(1, [4, 5]), (2, [])])
def test_a_restart_goes_on_after_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, old_size: int, seen: list[int]
) -> None:
    """old_size: ranks of the attempt that was preempted after 4 batches of each; the data has 6 batches."""
    asked = iter([False, True])
    with monkeypatch.context() as first:
        first.setattr(PreemptContext, "should_preempt", lambda _: next(asked))
        on_cluster(first, folder, None)
        torch_batch_process(Recording, DATA, max_batches=6, checkpoint_interval=2, dataloader_kwargs={"batch_size": 2})
    assert [number for number, _ in Recording.seen[0]] == [0, 1, 2, 3]
    assert "finish" not in Recording.calls
    Recording.seen.clear()
    [place] = [path for path in folder.glob("checkpoints/*") if '"steps_completed": 4' in read(path)]
    document = json.loads(read(place)) | {"world_size": old_size}
    monkeypatch.setattr(CheckpointContext, "get_metadata", lambda *_: document)
    on_cluster(monkeypatch, folder, CheckpointInfo(place.name, "", 4))
    torch_batch_process(Recording, DATA, batch_size=2)
    assert [number for number, _ in Recording.seen.get(0, [])] == seen
    assert Recording.calls[-1] == "finish"
    assert {document["default_output_uuid"] for document in metadata_in(folder)} == {document["default_output_uuid"]}


def read(place: Path) -> str:
    return (place / "metadata.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"dataset": iter(())}, "has no length"),
        ({"checkpoint_interval": 0}, "checkpoint_interval is 0"),
        ({"dataloader_kwargs": {"shuffle": True}}, "dataloader_kwargs shuffles"),
        ({"dataloader_kwargs": {"batch_sampler": []}}, "dataloader_kwargs has batch_sampler"),
        ({"dataloader_kwargs": {"batch_size": 1}, "batch_size": 2}, "batch_size is given twice"),
        ({"batch_size": 0}, "batch_size is 0; give"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(GanglineError, match=told) as caught:
        torch_batch_process(Recording, **{"dataset": DATA, **arguments})
    assert caught.value.code.startswith("batch_process.")
    assert Recording.calls == []
