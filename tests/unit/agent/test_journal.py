"""The journal on a real disk: what is written, by whom it may be used, and what becomes of broken files."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from services.agent.allocations import process_watch
from services.agent.allocations.folder import AllocationFolder
from services.agent.allocations.journal import Journal, open_journal, remove_folders
from services.agent.allocations.journal_record import JournalRecord, Phase, Process, mark_started
from services.agent.allocations.recovery import RecoveryVerdict, plan_recovery
from tests.support.agent_process import make_spec

SLOTS = ("a1/0",)


def _accept(journal: Journal, allocation_id: str = "1.1.1", epoch: int = 10) -> AllocationFolder:
    folder = journal.folder(allocation_id)
    folder.create(
        make_spec(allocation_id, SLOTS, epoch=epoch), JournalRecord(allocation_id, epoch, SLOTS, accepted_at=5.0)
    )
    return folder


def test_accepted_is_found_again(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        folder = _accept(journal)
    with open_journal(tmp_path, 0) as journal:
        (survey,) = journal.survey()
        assert survey.record == JournalRecord("1.1.1", 10, SLOTS, accepted_at=5.0)
        assert plan_recovery(survey.findings) is RecoveryVerdict.START
        assert journal.highest_epoch == 10
    assert stat.S_IMODE(folder.spec_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0):
        with pytest.raises(GanglineError) as caught, open_journal(tmp_path, 0):
            pass
        assert caught.value.code == "agent.state_dir_in_use"
        assert f"pid {os.getpid()}" in caught.value.message
        assert "--state-dir" in caught.value.message
    with open_journal(tmp_path, 0):
        pass


def test_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GanglineError, match="choose another --state-dir") as caught:
        open_journal(tmp_path / "file" / "state", 0).__enter__()
    assert caught.value.code == "agent.state_dir"


def test_ids_cannot_lead_out_of_the_journal(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal, pytest.raises(GanglineError, match="no allocation id"):
        journal.folder("../../etc")


def test_epoch_is_remembered_and_never_falls(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        journal.raise_epoch(41)
        journal.raise_epoch(40)
    with open_journal(tmp_path, 0) as journal:
        assert journal.highest_epoch == 41


def test_a_full_disk_does_not_keep_the_agent_from_a_new_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with open_journal(tmp_path, 0) as journal:
        monkeypatch.setattr("services.agent.allocations.journal.write_atomic", refuse)
        journal.raise_epoch(41)
        assert journal.highest_epoch == 41


def test_corrupted_epoch_falls_back_to_the_journal(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        _accept(journal, epoch=33)
        journal.raise_epoch(41)
    (tmp_path / "epoch").write_text("forty")
    with open_journal(tmp_path, 0) as journal:
        journal.survey()
        assert journal.highest_epoch == 33
    assert (tmp_path / "epoch.corrupt-1").read_text() == "forty"


@pytest.mark.parametrize("content", ["", '{"half', '{"version": 1, "allocation_id": "9.9.9"}'])
def test_corrupted_record_is_rebuilt_from_the_spec(tmp_path: Path, content: str) -> None:
    with open_journal(tmp_path, 0) as journal:
        folder = _accept(journal)
        folder.record_path.write_text(content)
    for _ in range(2):  # an agent that crashes right after it has moved the file aside sees the same again
        with open_journal(tmp_path, 0) as journal:
            (survey,) = journal.survey()
        assert survey.record is not None
        assert (survey.record.slot_ids, survey.record.epoch, survey.record.phase) == (SLOTS, 10, Phase.RUNNING)
        assert "record.json was unreadable" in survey.findings.problem
        assert plan_recovery(survey.findings) is RecoveryVerdict.CONCLUDE
    assert (folder.path / "record.json.corrupt-1").read_text() == content


def test_record_of_another_allocation_is_unreadable(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        folder = _accept(journal)
        folder.save(JournalRecord("2.2.2", 10, SLOTS, accepted_at=1.0))
        (survey,) = journal.survey()
    assert "it is the record of allocation 2.2.2" in survey.findings.problem


def test_strange_folders_are_left_alone(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        strange = tmp_path / "allocations" / "lost+found"
        strange.mkdir()
        assert journal.survey() == ()
    assert strange.is_dir()


def test_living_runner_is_seen_by_its_locks_and_by_its_process(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        folder = _accept(journal)
        assert not folder.is_locked()
        alive = folder.hold_alive()
        assert folder.is_locked()
        with pytest.raises(BlockingIOError):
            folder.hold_alive()
        os.close(alive)
        assert not folder.is_locked()
        with folder.lock_path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert folder.is_locked()
        elsewhere = mark_started(
            JournalRecord("1.1.1", 10, SLOTS, accepted_at=5.0), Process(os.getpid(), 1, "another boot")
        )
        folder.save(elsewhere)
        (survey,) = journal.survey()
        assert not survey.findings.is_alive, "same pid, another process"


def test_forgotten_folders_are_kept_without_their_token(tmp_path: Path) -> None:
    with open_journal(tmp_path, 2) as journal:
        for number in (1, 2, 3):
            folder = _accept(journal, f"{number}.1.1")
            journal.forget(folder)
            os.utime(tmp_path / "ended" / folder.allocation_id, (number, number))
        assert [path.read_bytes() for path in (tmp_path / "ended").glob("*/spec.json")] == [b"", b"", b""]
        assert journal.survey() == ()
        journal.tidy()
    assert sorted(path.name for path in (tmp_path / "ended").iterdir()) == ["2.1.1", "3.1.1"]
    assert not list((tmp_path / "ended").glob("*/spec.json"))


def test_forgotten_folders_can_be_removed_a_few_at_a_time_oldest_first(tmp_path: Path) -> None:
    with open_journal(tmp_path, 1) as journal:
        for number in (1, 2, 3, 4):
            folder = _accept(journal, f"{number}.1.1")
            journal.forget(folder)
            os.utime(tmp_path / "ended" / folder.allocation_id, (number, number))

        def left() -> list[str]:
            return sorted(path.name for path in (tmp_path / "ended").iterdir())

        surplus = journal.trim()
        remove_folders(surplus[:2])
        assert left() == ["3.1.1", "4.1.1"], "one more has to go"
        remove_folders(surplus[2:])
        assert left() == ["4.1.1"]
        assert journal.trim() == []


def test_nothing_is_kept_when_told_so(tmp_path: Path) -> None:
    with open_journal(tmp_path, 0) as journal:
        folder = _accept(journal)
        journal.forget(folder)
        assert not folder.path.exists()
        journal.tidy()
    assert list((tmp_path / "ended").iterdir()) == []


def test_what_ranks_of_a_killed_runner_left_is_not_kept(tmp_path: Path) -> None:
    with open_journal(tmp_path, 1) as journal:
        folder = _accept(journal)
        (folder.ranks_path / "gangline-checkpoint-x").mkdir(parents=True)
        (folder.ranks_path / "gangline-checkpoint-x" / "trainer.pth").write_bytes(b"x")
        journal.forget(folder)
        journal.tidy()
        [kept] = tmp_path.glob("*/1.1.1")
        assert [each.name for each in kept.iterdir()] == ["record.json"]


def test_a_start_that_is_not_synced_is_not_repeated_after_a_restart_of_the_machine(tmp_path: Path) -> None:
    """The disk may still say that nothing was started, although a runner was."""
    with open_journal(tmp_path, 0) as journal:
        folder = journal.folder("1.1.1")
        record = JournalRecord("1.1.1", 10, SLOTS, accepted_at=5.0, boot_id=process_watch.boot_id())
        folder.create(make_spec("1.1.1", SLOTS), record)
        (survey,) = journal.survey()
        assert plan_recovery(survey.findings) is RecoveryVerdict.START
        folder.save(replace(record, boot_id="an earlier boot"))
        (survey,) = journal.survey()
        assert plan_recovery(survey.findings) is RecoveryVerdict.CONCLUDE
        assert survey.findings.problem == "the machine was restarted since it was accepted"
