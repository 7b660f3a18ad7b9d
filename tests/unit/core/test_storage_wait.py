"""A rank waits for a storage that takes nothing: alone, with other ranks, and while a call hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.cluster_info import ClusterInfo, TrialInfo
from gangline.core import CheckpointContext, DistributedContext, DownloadMode
from gangline.core.beat import NoBeat
from gangline.core.link import Link
from gangline.core.storage_access import storage_wait, stream
from gangline.core.storage_access.storage import CheckpointStore
from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.errors import ErrorKind, GanglineError
from tests.support.world import in_ranks

MARKER = "7d1c"


class SaidLink(Link):
    """Keeps what the rank says of its waits. reason: of a preemption."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.reason: str | None = None
        self.on_wait: Callable[[str], None] = lambda text: None

    @property
    def preemption(self) -> str | None:
        return self.reason

    def preempt(self, grace_seconds: float) -> None:
        self.preemption_ends_at = time.monotonic() + grace_seconds
        self.reason = "pause"

    def send_waiting(self, text: str) -> None:
        self.waits.append(text)
        self.on_wait(text)


class Beat(NoBeat):
    def __init__(self) -> None:
        self.num_held = 0

    def hold(self) -> None:
        self.num_held += 1


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {
        "FIRST_PAUSE_SECONDS": 0.01,
        "LONGEST_PAUSE_SECONDS": 0.02,
        "_LOOK_SECONDS": 0.01,
        "PREEMPTED_SECONDS": 0.05,
        "LAST_SECONDS": 10.0,
        "SILENT_SECONDS": 0.2,
    }.items():
        monkeypatch.setattr(storage_wait, name, seconds)


def context_of(
    folder: Path,
    link: SaidLink,
    distributed: DistributedContext | None = None,
    limit_seconds: float = 30.0,
    *,
    own: str = "",
    beat: Beat | None = None,
) -> CheckpointContext:
    """Returns the context of a rank on the cluster whose storage is this folder. own: the storage of the script's own
    choice."""
    cluster = ClusterInfo("c1", "7.1.1", 1, "a1", 0, 1, [], str(folder), "", TrialInfo("7.1", 7, 1, {}, {}))
    cluster = replace(cluster, storage_wait_seconds=limit_seconds)
    store = CheckpointStore(own or str(folder), None, "" if own else MARKER)
    return CheckpointContext(distributed or DistributedContext(), link, store, cluster, beat=beat)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "storage"
    folder.mkdir()
    (folder / MARKER_FILE).write_text(f"{MARKER}\n")
    return folder


def save(context: CheckpointContext, shard: bool = False) -> str:
    with context.store_path({"steps_completed": 4}, shard=shard) as (path, storage_id):
        (path / f"weights.{context._distributed.rank}").write_text("w")
    return storage_id


class Full:
    """Refuses so many writes of a rank, as a full disk does. A write of a rank that is not named works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, rank: int | None = None) -> None:
        self.left = times
        original = CheckpointStore.upload_files

        def upload(store: CheckpointStore, storage_id: str, directory: Path, paths: Any) -> None:
            chosen = list(paths)
            is_meant = rank is None or f"weights.{rank}" in chosen
            if is_meant and self.left:
                self.left -= 1
                raise OSError(28, "No space left on device")
            original(store, storage_id, directory, chosen)

        monkeypatch.setattr(CheckpointStore, "upload_files", upload)


def test_it_tries_again_until_the_storage_takes_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link, beat = SaidLink(), Beat()
    context = context_of(folder, link, beat=beat)
    Full(monkeypatch, 3)
    caplog.set_level("INFO")
    storage_id = save(context)
    assert (folder / "checkpoints" / storage_id / "weights.0").read_text() == "w"
    assert [name.name for name in (folder / "checkpoints").iterdir()] == [storage_id]
    assert len(link.waits) == 2
    assert "takes nothing now (OSError: [Errno 28] No space left on device)" in link.waits[0]
    assert link.waits[1] == ""
    assert caplog.text.count("the trial waits and tries again for up to 30 s") == 1
    assert caplog.text.count(f"the storage {folder} takes files again") == 1
    assert beat.num_held > 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_ranks_wait_where_one_cannot_write(folder: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    Full(monkeypatch, 2, rank)
    links = [SaidLink() for _ in range(3)]

    def work(distributed: DistributedContext) -> str:
        context = context_of(folder, links[distributed.rank], distributed)
        storage_id = save(context, shard=True)
        # The ranks are in step afterwards.
        assert distributed.allgather(distributed.rank) == [0, 1, 2]
        return storage_id

    [storage_id] = set(in_ranks(3, work))
    saved = {path.name for path in (folder / "checkpoints" / storage_id).iterdir()}
    assert saved == {"weights.0", "weights.1", "weights.2", "metadata.json"}
    assert [bool(link.waits) for link in links] == [True, False, False], "the chief speaks for all"


def test_a_preemption_ends_the_wait_on_all_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Full(monkeypatch, 1_000_000, 1)
    links = [SaidLink() for _ in range(2)]
    links[0].on_wait = lambda text: setattr(links[0], "reason", "an administrator pauses it") if text else None

    def work(distributed: DistributedContext) -> tuple[str, ErrorKind]:
        with pytest.raises(GanglineError, match=r"^stopped without a checkpoint, because ") as caught:
            save(context_of(folder, links[distributed.rank], distributed), shard=True)
        return caught.value.code, caught.value.kind

    assert set(in_ranks(2, work)) == {("checkpoint.not_saved", ErrorKind.UNAVAILABLE)}
    assert links[0].waits[-1] == ""


def test_the_wait_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Full(monkeypatch, 1_000_000)
    with pytest.raises(GanglineError, match="the trial has waited for 0 s; earlier checkpoints are as they") as caught:
        save(context_of(folder, SaidLink(), limit_seconds=0.1))
    assert (caught.value.code, caught.value.kind) == ("checkpoint.storage", ErrorKind.UNAVAILABLE)


@pytest.mark.parametrize(("is_own", "kind"), [(True, ErrorKind.INVALID), (False, ErrorKind.UNAVAILABLE)])
def test_a_missing_permission_is_told_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool, kind: ErrorKind
) -> None:
    """In the storage of the script's own choice it is the script's mistake."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(CheckpointStore, "upload_files", refuse)
    link = SaidLink()
    with pytest.raises(GanglineError, match=r"could not be written to .*: PermissionError: ") as caught:
        save(context_of(folder, link, own=str(tmp_path / "own") if is_own else ""))
    assert (caught.value.code, caught.value.kind) == ("checkpoint.storage", kind)
    assert not any(link.waits)


@pytest.mark.parametrize("remains", ["nothing", "an empty folder", "another storage"])
def test_a_lost_mount_is_waited_for_and_not_made_anew(folder: Path, remains: str) -> None:
    aside = folder.with_name("aside")
    folder.rename(aside)
    if remains != "nothing":
        folder.mkdir()
    if remains == "another storage":
        (folder / MARKER_FILE).write_text("another")
    link = SaidLink()
    found: list[list[str]] = []

    def bring_back(text: str) -> None:
        if text and not found:
            assert "is away" in text
            found.append(sorted(path.name for path in folder.iterdir()) if folder.exists() else [])
            if folder.exists():
                folder.rename(folder.with_name("mount point"))
            aside.rename(folder)

    link.on_wait = bring_back
    storage_id = save(context_of(folder, link))
    assert found == [[MARKER_FILE] if remains == "another storage" else []]
    assert (folder / "checkpoints" / storage_id / "metadata.json").is_file()


@pytest.mark.parametrize("call", ["get_metadata", "download", "restore_path"])
def test_reading_waits_too(folder: Path, tmp_path: Path, call: str) -> None:
    link = SaidLink()
    context = context_of(folder, link)
    storage_id = save(context)
    aside = folder.with_name("aside")
    folder.rename(aside)
    link.waits.clear()
    link.on_wait = lambda text: aside.rename(folder) if text and aside.exists() else None  # type: ignore[assignment]
    if call == "get_metadata":
        assert context.get_metadata(storage_id)["steps_completed"] == 4
    elif call == "download":
        context.download(storage_id, tmp_path / "copy", DownloadMode.NoSharedDownload)
        assert (tmp_path / "copy" / "weights.0").read_text() == "w"
    else:
        with context.restore_path(storage_id) as path:
            assert (path / "weights.0").read_text() == "w"
    assert "is away" in link.waits[0]


@pytest.mark.parametrize("call", ["get_metadata", "download", "restore_path"])
def test_a_storage_that_comes_back_while_a_checkpoint_is_looked_for_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The file is absent, and then the check finds the storage present: the checkpoint is not lost."""
    context = context_of(folder, SaidLink())
    storage_id = save(context)
    aside, original = folder.with_name("aside"), CheckpointStore.check_present
    times = 0

    def return_and_check(store: CheckpointStore) -> None:
        nonlocal times
        times += 1
        if aside.exists():
            aside.rename(folder)
        original(store)

    monkeypatch.setattr(CheckpointStore, "check_present", return_and_check)
    folder.rename(aside)
    if call == "get_metadata":
        assert context.get_metadata(storage_id)["steps_completed"] == 4
    elif call == "download":
        context.download(storage_id, tmp_path / "copy", DownloadMode.NoSharedDownload)
        assert (tmp_path / "copy" / "weights.0").read_text() == "w"
    else:
        with context.restore_path(storage_id) as path:
            assert (path / "weights.0").read_text() == "w"
    assert times == 1
    with pytest.raises(GanglineError, match="no checkpoint absent"):
        context.get_metadata("absent")


def test_all_ranks_of_a_machine_wait_for_the_one_that_reads(folder: Path) -> None:
    storage_id = save(context_of(folder, SaidLink()))
    aside = folder.with_name("aside")
    folder.rename(aside)
    link = SaidLink()
    link.on_wait = lambda text: aside.rename(folder) if text and aside.exists() else None  # type: ignore[assignment]

    def work(distributed: DistributedContext) -> str:
        context = context_of(folder, link if distributed.rank == 0 else SaidLink(), distributed)
        with context.restore_path(storage_id) as path:
            return (path / "weights.0").read_text()

    assert in_ranks(2, work) == ["w", "w"]


def test_a_storage_that_hangs_is_named_and_a_preemption_leaves_it(folder: Path) -> None:
    """A call that hangs cannot be ended, so the thread that trains does not make it."""
    marker = folder / MARKER_FILE
    marker.unlink()
    os.mkfifo(marker)
    link, beat = SaidLink(), Beat()
    link.on_wait = lambda text: link.preempt(10.2) if text else None
    try:
        with pytest.raises(
            GanglineError, match=r"^stopped without a checkpoint, because the storage .* does not answer"
        ):
            save(context_of(folder, link, beat=beat))
        assert "does not answer" in link.waits[0]
        assert beat.num_held > 0
    finally:
        os.close(os.open(marker, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("ends_in", [60.0, None])
def test_a_slow_sync_of_a_preempted_trial_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ends_in: float | None
) -> None:
    """Its checkpoint is not lost while the preemption leaves time. None: the rank does not know yet how much."""
    link, beat, original = SaidLink(), Beat(), os.fsync
    is_late = threading.Event()

    def sync(descriptor: int) -> None:
        if not is_late.is_set():
            # Many checks after the storage has been reported as silent, under a preemption.
            deadline = time.monotonic() + 30.0
            while not (is_late.is_set() or (link.waits and beat.num_held >= 60)):
                assert time.monotonic() < deadline
                threading.Event().wait(0.005)
            is_late.set()
        original(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    link.reason = "pause"
    if ends_in is not None:
        link.preempt(ends_in)
    try:
        storage_id = save(context_of(folder, link, beat=beat))
    finally:
        is_late.set()
    assert "does not answer" in link.waits[0]
    assert (folder / "checkpoints" / storage_id / "weights.0").read_text() == "w"


@pytest.mark.parametrize("way", ["upload", "stream"])
def test_a_large_file_is_synced_in_parts_that_count_as_progress(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(stream, "SYNC_BYTES", 1 << 20)
    store = CheckpointStore(str(folder), None, MARKER)
    synced: list[int] = []
    moved: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(store.calls, "move", lambda: moved.append(len(synced)))
    if way == "upload":
        (tmp_path / "weights").write_bytes(b"w" * (3 << 20))
        store.upload_files("c1", tmp_path, ["weights"])
    else:
        with store.open_file("c1", "weights") as file:
            for _ in range(3):
                file.write(b"w" * (1 << 20))
    assert synced == [1 << 20, 2 << 20, 3 << 20, 3 << 20]
    assert {1, 2, 3} <= set(moved)


def test_a_storage_that_answers_again_ends_the_wait(folder: Path) -> None:
    marker = folder / MARKER_FILE
    marker.unlink()
    os.mkfifo(marker)
    link, has_hung = SaidLink(), threading.Event()

    def answer(text: str) -> None:
        if text:
            has_hung.set()
            marker.rename(folder / "pipe")
            marker.write_text(MARKER)
            os.close(os.open(folder / "pipe", os.O_WRONLY | os.O_NONBLOCK))

    link.on_wait = answer
    storage_id = save(context_of(folder, link))
    assert has_hung.is_set()
    assert link.waits[-1] == ""
    assert (folder / "checkpoints" / storage_id / "weights.0").is_file()


def test_off_the_cluster_the_error_comes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Full(monkeypatch, 1)
    context = CheckpointContext(DistributedContext(), Link(), CheckpointStore(str(tmp_path)), None)
    with pytest.raises(GanglineError, match=r"could not be written to .*\[Errno 28\]"):
        save(context)


def test_a_commit_that_storage_interrupts_after_its_rename_is_ended_by_the_next_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(5, "Input/output error")]
    original = CheckpointStore._seal

    def seal(store: CheckpointStore, *arguments: Any) -> None:
        original(store, *arguments)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(CheckpointStore, "_seal", seal)
    storage_id = save(context_of(folder, SaidLink()))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [storage_id]
    assert sorted(path.name for path in (folder / "checkpoints" / storage_id).iterdir()) == [
        "metadata.json",
        "weights.0",
    ]
