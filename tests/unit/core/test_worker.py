"""The place of a process in a trial whose entrypoint runs once on each machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gangline import core
from gangline.cluster_info import ENVIRONMENT_KEY, ClusterInfo, TrialInfo
from gangline.core import beat, worker
from gangline.core.distributed import DistributedContext
from gangline.core.transport import AloneTransport
from gangline.core.worker import WorkerPlace, find_place
from gangline.errors import GanglineError
from gangline.launch.beat_file import BEAT_KEY, BeatFile, file_name
from gangline.pytorch.setup import _check_slots


def _info(**fields: Any) -> ClusterInfo:
    """The second of two machines with two slots each."""
    trial = TrialInfo("7.1", 7, 0, {}, {})
    base = ClusterInfo("c", "7.1.1", 1, "a2", 1, 2, ["a2/0", "a2/1"], "/s", "/c", trial, rank=2, world_size=4)
    values = {name: getattr(base, name) for name in ClusterInfo.__dataclass_fields__}
    return ClusterInfo(**{**values, "runs_once": True, **fields})


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_named", None)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_script_counts_as_the_first_slot_and_its_workers_as_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_place(_info()) == WorkerPlace(2, 0)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_place(_info()) == WorkerPlace(3, 1), "as torchrun sets it"
    worker.name_place(1, 0)
    assert find_place(_info()) == WorkerPlace(1, 0), "as a DistributedContext names it"
    assert find_place(_info(runs_once=False)) == WorkerPlace(2, 1)


def test_a_fork_has_a_place_of_its_own() -> None:
    worker.name_place(1, 0)
    pid = os.fork()
    if pid == 0:
        os._exit(7 if find_place(_info()) == WorkerPlace(2, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_each_worker_has_the_beat_file_of_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (2, 3):
        BeatFile(tmp_path / file_name(rank))
    monkeypatch.setenv(BEAT_KEY, str(tmp_path / file_name(2)))
    found = []
    for local_rank in range(3):
        worker.name_place(2 + local_rank, local_rank)
        found.append(beat._find_path(_info()))
    assert found == [str(tmp_path / file_name(2)), str(tmp_path / file_name(3)), None]


def _refusal_of(monkeypatch: pytest.MonkeyPatch, info: ClusterInfo, **place: Any) -> GanglineError:
    monkeypatch.setenv(ENVIRONMENT_KEY, info.to_json())
    with pytest.raises(GanglineError) as caught:
        DistributedContext(**place, transport=AloneTransport())
    return caught.value


def test_a_second_chief_is_refused_with_the_options_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each machine would report and save as rank 0."""
    refused = _refusal_of(monkeypatch, _info(), rank=0, size=2, local_size=2)
    assert refused.code == "core.rank"
    assert "--nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR" in refused.message
    monkeypatch.setenv(ENVIRONMENT_KEY, _info(node_rank=0, rank=0).to_json())
    DistributedContext(rank=0, size=4, local_size=2, transport=AloneTransport())


def test_a_script_on_two_machines_needs_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_KEY, _info().to_json())
    with pytest.raises(GanglineError, match="runs once on each of 2 machines") as caught:
        core.DistributedContext.from_environment()
    assert caught.value.code == "core.no_context"
    monkeypatch.setenv(ENVIRONMENT_KEY, _info(num_nodes=1, node_rank=0, rank=0).to_json())
    assert core.DistributedContext.from_environment().size == 1


def test_the_trainer_does_not_train_on_one_of_several_slots() -> None:
    with pytest.raises(GanglineError, match="in front of it, which runs it in every slot") as caught:
        _check_slots(_info(num_nodes=1, world_size=2))
    assert caught.value.code == "pytorch.one_process"
    _check_slots(_info(num_nodes=1, world_size=1))
    _check_slots(_info(runs_once=False))
    _check_slots(None)
