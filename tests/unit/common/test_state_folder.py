"""The files that agent and runner share: what the one writes, the other reads, and only their owner may."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.v1 import agent_pb2, runner_pb2, types_pb2
from services.common import state_folder
from services.common.disk_fault import spare_path
from services.common.state_folder import SharedFolder, StateFolder, take_flock


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SharedFolder]:
    shared_folder = SharedFolder(tmp_path / "allocations" / "1.1.1")
    shared_folder.path.mkdir(parents=True)
    yield shared_folder
    shared_folder.remove_spares()


def _status(message: str = "all is well") -> agent_pb2.AllocationStatus:
    return agent_pb2.AllocationStatus(
        allocation_id="1.1.1",
        exit=types_pb2.ExitReport(message=message),
        undelivered=[runner_pb2.TrialReport(sequence=3)],
    )


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_folder_names_its_allocation_and_its_state_directory(tmp_path: Path, folder: SharedFolder) -> None:
    assert folder.allocation_id == "1.1.1"
    assert folder.state == StateFolder(tmp_path)
    assert folder.path.parent == folder.state.allocations


def test_only_the_owner_may_read_what_could_hold_a_token(folder: SharedFolder) -> None:
    folder.write_spec(runner_pb2.RunnerSpec(token="secret"))
    folder.write_exit(_status())
    folder.write_nursery_pid(7)
    folder.write_rank_pids([8, 9])
    descriptors = [folder.open_log(), folder.hold_alive(), folder.take_lock()]
    assert {path.name: _mode(path) for path in folder.path.iterdir()} == dict.fromkeys(
        ("spec.json", "exit.json", "nursery.pid", "ranks.pid", "runner.log", "alive", "lock"), 0o600
    )
    assert not any(map(os.get_inheritable, descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    folder.write_record("{}", is_durable=True)
    assert _mode(folder.record_path) == 0o600


def test_the_runner_reads_the_spec_that_the_agent_wrote(folder: SharedFolder) -> None:
    spec = runner_pb2.RunnerSpec(token="secret", node_rank=2)
    folder.write_spec(spec)
    assert folder.read_spec() == spec


def test_a_spec_that_is_absent_or_no_spec_is_an_error(folder: SharedFolder) -> None:
    with pytest.raises(FileNotFoundError):
        folder.read_spec()
    folder.spec_path.write_text("[1")
    with pytest.raises(ValueError, match="no RunnerSpec in JSON"):
        folder.read_spec()
    folder.spec_path.write_text('{"fieldOfALaterVersion": 1, "nodeRank": 1}')
    assert folder.read_spec().node_rank == 1


def test_a_runner_that_left_no_exit(folder: SharedFolder) -> None:
    assert not folder.has_exit
    assert folder.load_exit() is None


def test_the_agent_loads_the_exit_that_the_runner_wrote(folder: SharedFolder) -> None:
    folder.write_exit(_status())
    assert folder.has_exit
    assert folder.load_exit() == _status()


def test_an_exit_that_the_disk_refuses_is_loaded_all_the_same(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_folder, "write_atomic", refuse)
    folder.write_exit(_status("the disk is full"))
    assert not folder.exit_path.exists()
    assert _mode(spare_path(folder.exit_path)) == 0o600
    assert folder.has_exit
    assert folder.load_exit() == _status("the disk is full")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"{", "no AllocationStatus in JSON"), (b"{}", "it names no exit"), (b"\xff", "codec can't decode")],
)
def test_an_exit_that_is_none_is_an_error(folder: SharedFolder, content: bytes, problem: str) -> None:
    folder.exit_path.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        folder.load_exit()


def test_an_exit_that_cannot_be_read_is_an_error(folder: SharedFolder) -> None:
    folder.exit_path.mkdir()
    with pytest.raises(ValueError, match="Is a directory"):
        folder.load_exit()


def test_the_order_to_stop_is_read_from_the_record(folder: SharedFolder) -> None:
    assert folder.read_stop() == {}
    folder.write_record('{"stop": {"reason": "alice asked", "deadline_at": 5.5}}', is_durable=False)
    assert folder.read_stop() == {"reason": "alice asked", "deadline_at": 5.5}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"stop": null}', '{"stop": 3}'])
def test_a_record_without_an_order_has_no_order(folder: SharedFolder, text: str) -> None:
    folder.write_record(text, is_durable=False)
    assert folder.read_stop() == {}


def test_a_flock_has_one_holder_until_it_ends(tmp_path: Path) -> None:
    held = take_flock(tmp_path / "lock")
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BlockingIOError):
        take_flock(tmp_path / "lock")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors, "a refused try leaves nothing open"
    os.close(held)
    os.close(take_flock(tmp_path / "lock"))


@pytest.mark.parametrize("take", [SharedFolder.take_lock, SharedFolder.hold_alive])
def test_either_lock_shows_that_a_runner_lives(folder: SharedFolder, take: Callable[[SharedFolder], int]) -> None:
    assert not folder.is_locked()
    descriptor = take(folder)
    assert folder.is_locked()
    os.close(descriptor)
    assert not folder.is_locked()


def test_the_agents_pid_says_whether_it_lives(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    assert not state.has_agent()
    for content, is_alive in (("", False), ("no pid", False), (f"{2**22}\n", False), (f"{os.getpid()}\n", True)):
        state.lock_path.write_text(content)
        assert state.has_agent() == is_alive


def test_an_address_that_a_rank_replaced_by_a_pipe_holds_nothing_up(folder: SharedFolder) -> None:
    os.mkfifo(folder.metrics_path)
    assert folder.load_metrics_address() == ""


def test_the_note_of_an_outcome_is_no_exit(folder: SharedFolder) -> None:
    folder.write_outcome(_status("noted"))
    assert not folder.has_exit
    assert folder.load_exit() is None
    assert folder.load_outcome() == _status("noted")
    folder.outcome_path.write_text("{")
    with pytest.raises(ValueError, match="no AllocationStatus in JSON"):
        folder.load_outcome()


def test_no_report_in_shared_memory_outlives_its_allocation(
    folder: SharedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_folder, "write_atomic", refuse)
    folder.write_outcome(_status())
    folder.write_exit(_status())
    assert folder.load_outcome() == _status()
    folder.remove_spares()
    assert (folder.load_outcome(), folder.load_exit()) == (None, None)
