"""Files that the scheduler does not need are deleted, despite any obstacle; files that it names stay in any case."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from gangline.core.storage_access.storage import CheckpointStore, describe_files
from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.resource import Cluster
from gangline.domain.state import CheckpointState
from gangline.domain.storage.partial import Partial, Writer, parse_partial, partial_name
from gangline.errors import GanglineError, unavailable
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import CLEANUP_NOTIFICATION
from services.gateway.storage import cleanup
from services.gateway.storage.cleanup import Cleanup, clear
from services.gateway.storage.storage import Storage
from tests.support.stand_in_mirror import StandInMirror
from tests.support.wait import until

_CLUSTER = Cluster(1, "c1", 1.0)
_WRITER = Writer("c1", "7.1.1")


class Heard:
    """A leader that drops what it hears of, after as many failures as it is told."""

    def __init__(self, mirror: StandInMirror, num_failures: int = 0) -> None:
        self.deleted: list[list[str]] = []
        self._mirror = mirror
        self._num_failures = num_failures

    async def __call__(
        self, request: scheduler_pb2.ConfirmCheckpointsDeletedRequest
    ) -> scheduler_pb2.ConfirmCheckpointsDeletedResponse:
        if self._num_failures:
            self._num_failures -= 1
            raise unavailable("gateway.no_leader", "nobody leads")
        self.deleted.append(list(request.checkpoint_ids))
        for checkpoint_id in request.checkpoint_ids:
            self._mirror.state.apply(keys.checkpoint(checkpoint_id), None)
        return scheduler_pb2.ConfirmCheckpointsDeletedResponse(revision=0)


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, where folders are renamed, and a store without folders."""
    return str(tmp_path / "storage") if request.param == "directory" else f"memory://{tmp_path.name}"


@pytest.fixture
def mirror() -> StandInMirror:
    mirror = StandInMirror()
    mirror.put(keys.CLUSTER, _CLUSTER)
    mirror.put(keys.trial("7.1"), Trial("7.1", 7, 1, attempts=2))
    return mirror


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(cleanup, "TELL_SECONDS", 0.01)
    monkeypatch.setattr(cleanup, "SWEEP_SECONDS", 0.01)


@asynccontextmanager
async def _running(mirror: StandInMirror, storage: Storage, *, num_failures: int = 0) -> AsyncIterator[Heard]:
    heard = Heard(mirror, num_failures)
    cleaner = Cleanup(mirror, heard, storage)
    cleaner.start()
    try:
        yield heard
    finally:
        await cleaner.stop()


def _save(url: str, tmp_path: Path, storage_id: str, writer: Writer | None = None) -> Checkpoint:
    store = CheckpointStore(url, writer)
    _upload(store, tmp_path, storage_id)
    files = describe_files(tmp_path / "files")
    place = store.commit(storage_id, {}, files)
    return Checkpoint(storage_id, "7.1", 7, 1, place, {path: file.bytes for path, file in files.items()})


def _upload(store: CheckpointStore, tmp_path: Path, storage_id: str) -> None:
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "deep" / "weights").write_text("w")
    (folder / "note").write_text("n")
    store.upload_files(storage_id, folder, ["deep/weights", "note"])


def _names(url: str) -> list[str]:
    return sorted(Storage(url).names("checkpoints"))


def _mark(mirror: StandInMirror, checkpoint: Checkpoint) -> None:
    mirror.put(keys.checkpoint(checkpoint.id), replace(checkpoint, state=CheckpointState.DELETING))
    mirror.changes.ring((CLEANUP_NOTIFICATION,))


async def test_marked_checkpoints_go_and_the_leader_hears_of_it(
    url: str, tmp_path: Path, mirror: StandInMirror
) -> None:
    kept, early, late = (_save(url, tmp_path, name) for name in ("kept", "early", "late"))
    mirror.put(keys.checkpoint("kept"), kept)
    _mark(mirror, early)
    async with _running(mirror, Storage(url)) as heard:
        await until(lambda: heard.deleted == [["early"]], "the first deletion")
        _mark(mirror, late)
        await until(lambda: heard.deleted == [["early"], ["late"]], "the second deletion")
    assert _names(url) == ["kept"]
    CheckpointStore(url).download("kept", tmp_path / "copy")


async def test_several_gateways_delete_the_same(url: str, tmp_path: Path, mirror: StandInMirror) -> None:
    checkpoints = [_save(url, tmp_path, f"c{number}") for number in range(8)]
    async with _running(mirror, Storage(url)) as first, _running(mirror, Storage(url)) as second:
        for checkpoint in checkpoints:
            _mark(mirror, checkpoint)
        await until(lambda: not mirror.state.marked, "the end of all deletions")
    assert _names(url) == []
    assert {checkpoint_id for told in (*first.deleted, *second.deleted) for checkpoint_id in told} == {
        checkpoint.id for checkpoint in checkpoints
    }


async def test_gateway_that_was_killed_in_the_middle_is_resumed(tmp_path: Path, mirror: StandInMirror) -> None:
    """Renamed, half deleted, and the leader never heard of it."""
    url = str(tmp_path / "storage")
    checkpoint = _save(url, tmp_path, "half")
    folder = tmp_path / "storage" / "checkpoints"
    (folder / "half").rename(folder / ".removed-half")
    (folder / ".removed-half" / "note").unlink()
    _mark(mirror, checkpoint)
    async with _running(mirror, Storage(url)) as heard:
        await until(lambda: heard.deleted == [["half"]], "the end of the deletion")
    assert _names(url) == []


async def test_record_stays_until_the_leader_hears_it(url: str, tmp_path: Path, mirror: StandInMirror) -> None:
    _mark(mirror, _save(url, tmp_path, "gone"))
    async with _running(mirror, Storage(url), num_failures=3) as heard:
        await until(lambda: heard.deleted == [["gone"]], "the leader hearing of it")
    assert not mirror.state.marked


async def test_storage_that_fails_is_tried_again_and_holds_nobody_up(
    tmp_path: Path, mirror: StandInMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path / "storage"))
    bad, good = (_save(storage.url, tmp_path, name) for name in ("bad", "good"))
    tries, remove = [], storage.remove_folder

    def fail_twice(path: str, aside: str = "", first: str = "") -> None:
        tries.append(path)
        if path.endswith("bad") and tries.count(path) < 3:
            raise PermissionError("read-only")
        remove(path, aside, first)

    monkeypatch.setattr(storage, "remove_folder", fail_twice)
    _mark(mirror, bad)
    _mark(mirror, good)
    async with _running(mirror, storage) as heard:
        await until(lambda: heard.deleted == [["good"], ["bad"]], "both deletions")
    assert tries.count("checkpoints/bad") == 3


async def test_storage_that_hangs_keeps_only_what_it_hangs_on(
    tmp_path: Path, mirror: StandInMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More calls hang than there are threads. A call that hung is tried again, and deletes once the storage answers."""
    monkeypatch.setattr(cleanup, "DELETE_SECONDS", 0.1)
    monkeypatch.setattr(cleanup, "LONGEST_BACKOFF_SECONDS", 0.2)
    storage = Storage(str(tmp_path / "storage"))
    bad = [_save(storage.url, tmp_path, f"bad{number}") for number in range(cleanup.NUM_THREADS + 1)]
    good = _save(storage.url, tmp_path, "good")
    answers, remove = threading.Event(), storage.remove_folder

    def hang(path: str, aside: str = "", first: str = "") -> None:
        if "bad" in path:
            answers.wait(60)
        remove(path, aside, first)

    monkeypatch.setattr(storage, "remove_folder", hang)
    for checkpoint in [*bad, good]:
        _mark(mirror, checkpoint)
    try:
        async with _running(mirror, storage) as heard:
            await until(lambda: heard.deleted == [["good"]], "the deletion of what does not hang")
            await until(lambda: metrics.HUNG_DELETIONS._value.get() >= cleanup.MOST_HUNG, "the most hung calls")
            assert _cleanup_threads() <= cleanup.MOST_HUNG + cleanup.NUM_THREADS
            late = _save(storage.url, tmp_path, "late")
            _mark(mirror, late)
            await until(
                lambda: "late" in {checkpoint_id for told in heard.deleted for checkpoint_id in told},
                "another deletion",
            )
            answers.set()
            await until(lambda: not mirror.state.marked, "the end of all deletions")
            await until(lambda: metrics.HUNG_DELETIONS._value.get() == 0, "the return of what hung")
    finally:
        answers.set()
    assert _names(storage.url) == []


def _cleanup_threads() -> int:
    threads = [thread for thread in threading.enumerate() if thread.name == "cleanup"]
    assert all(thread.daemon for thread in threads), "a hung thread would keep the gateway from ending"
    return len(threads)


@pytest.mark.parametrize(
    "url", ["memory://x", "http://127.0.0.1:9/checkpoints/c", "simplecache::file:///x", "zip://a::http://h/x"]
)
async def test_foreign_url_is_not_opened(
    tmp_path: Path, mirror: StandInMirror, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    storage = Storage(str(tmp_path / "storage"))
    opened: list[str] = []
    monkeypatch.setattr(fsspec.core, "url_to_fs", opened.append)
    _mark(mirror, Checkpoint("forged", "7.1", 7, 1, url))
    async with _running(mirror, storage) as heard:
        await until(lambda: heard.deleted == [["forged"]], "the record being dropped")
    with pytest.raises(GanglineError, match=re.escape(url)):
        storage.locate(url)
    assert opened == []


@pytest.mark.parametrize(
    "named", ["elsewhere", "storage/checkpoints/other", "storage/code", "storage/checkpoints/link"]
)
async def test_files_that_are_not_the_checkpoints_own_are_left(
    tmp_path: Path, mirror: StandInMirror, named: str
) -> None:
    """A trial names its checkpoint's folder, so it must not be able to have any other deleted."""
    storage = Storage(str(tmp_path / "storage"))
    victim = tmp_path / ("elsewhere" if named.endswith("link") else named)
    victim.mkdir(parents=True)
    (victim / "precious").write_text("x")
    (tmp_path / "storage" / "checkpoints").mkdir(exist_ok=True, parents=True)
    (tmp_path / "storage" / "checkpoints" / "link").symlink_to(victim)
    checkpoint_id = "link" if named.endswith("link") else "forged"
    _mark(mirror, Checkpoint(checkpoint_id, "7.1", 7, 1, str(tmp_path / named)))
    async with _running(mirror, storage) as heard:
        await until(lambda: heard.deleted == [[checkpoint_id]], "the record being dropped")
    assert (victim / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("writer", "stays"),
    [
        (Writer("c1", "7.1.1"), False),
        (Writer("c1", "7.1.2"), True),
        (Writer("c1", "7.1.3"), True),
        (Writer("c1", "9.1.1"), True),
        (Writer("c2", "7.1.1"), True),
    ],
    ids=["ended", "running", "newer than the mirror", "unknown trial", "another cluster's"],
)
async def test_unfinished_files_go_with_their_attempt(
    url: str, tmp_path: Path, mirror: StandInMirror, writer: Writer, stays: bool
) -> None:
    mirror.put(keys.allocation("7.1.2"), Allocation("7.1.2", "7.1", 7, 2, 1, "default", (Member("a1", 0),)))
    _upload(CheckpointStore(url, writer), tmp_path, "half")
    before = _names(url)
    # One that surely goes shows that the others were looked at.
    _upload(CheckpointStore(url, _WRITER), tmp_path, "surely")
    wanted = before if stays else []
    async with _running(mirror, Storage(url)):
        await until(lambda: _names(url) == wanted, "the sweep")


async def test_sweep_that_fails_is_tried_again(
    tmp_path: Path, mirror: StandInMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, failures = Storage(str(tmp_path / "storage")), [PermissionError("read-only"), OSError("no answer")]
    _upload(CheckpointStore(storage.url, _WRITER), tmp_path, "half")
    remove = storage.remove_folder

    def fail_twice(path: str, aside: str = "", first: str = "") -> None:
        if failures:
            raise failures.pop()
        remove(path, aside, first)

    monkeypatch.setattr(storage, "remove_folder", fail_twice)
    monkeypatch.setattr(cleanup, "LONGEST_BACKOFF_SECONDS", 0.01)
    async with _running(mirror, storage):
        await until(lambda: not _names(storage.url), "the sweep")
    assert not failures


async def test_end_of_an_attempt_has_its_files_cleared(url: str, tmp_path: Path, mirror: StandInMirror) -> None:
    mirror.put(keys.allocation("7.1.2"), Allocation("7.1.2", "7.1", 7, 2, 1, "default", (Member("a1", 0),)))
    committed = _save(url, tmp_path, "whole", Writer("c1", "7.1.2"))
    async with _running(mirror, Storage(url)):
        _upload(CheckpointStore(url, Writer("c1", "7.1.2")), tmp_path, "half")
        mirror.state.apply(keys.allocation("7.1.2"), None)
        mirror.changes.ring((CLEANUP_NOTIFICATION,))
        await until(lambda: _names(url) == ["whole"], "the sweep")
    CheckpointStore(url).download(committed.id, tmp_path / "copy")


def test_ranks_that_outlive_their_attempt_cannot_commit_what_was_cleared(url: str, tmp_path: Path) -> None:
    """Also when some of their files come after the sweep."""
    store = CheckpointStore(url, _WRITER)
    _upload(store, tmp_path, "half")
    files = describe_files(tmp_path / "files")
    clear(Storage(url), Partial(_WRITER, "half"))
    with store.open_file("half", "note") as stream:
        stream.write(b"n")
    with pytest.raises(GanglineError) as caught:
        store.commit("half", {}, files)
    assert caught.value.code == "checkpoint.swept"
    with pytest.raises(GanglineError, match="no checkpoint half"):
        store.load_metadata("half")


@pytest.mark.parametrize("step", range(10))
@pytest.mark.parametrize("is_sweep_inside", [True, False])
def test_sweep_and_commit_at_the_same_time_leave_a_whole_checkpoint_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_sweep_inside: bool
) -> None:
    """Without renames the two meet at the manifest: one of them runs in the middle of the other, at any of its
    calls."""
    url = f"memory://{tmp_path.name}"
    store = CheckpointStore(url, _WRITER)
    _upload(store, tmp_path, "half")
    files, outcomes = describe_files(tmp_path / "files"), []

    def commit() -> None:
        try:
            store.commit("half", {}, files)
            outcomes.append("committed")
        except GanglineError as error:
            outcomes.append(error.code)

    def sweep() -> None:
        clear(Storage(url), Partial(_WRITER, "half"))

    outer, inner = (commit, sweep) if is_sweep_inside else (sweep, commit)
    has_run = _interpose(monkeypatch, step, inner)
    outer()
    monkeypatch.undo()
    if not has_run:
        inner()
    assert outcomes in (["committed"], ["checkpoint.swept"])
    if outcomes == ["committed"]:
        CheckpointStore(url).download("half", tmp_path / "copy")
    else:
        with pytest.raises(GanglineError, match="no checkpoint half"):
            store.load_metadata("half")


@pytest.mark.parametrize("step", range(5))
def test_sweep_in_the_middle_of_a_commit_by_renaming_leaves_a_whole_checkpoint_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    url = str(tmp_path / "storage")
    store = CheckpointStore(url, _WRITER)
    _upload(store, tmp_path, "half")
    files = describe_files(tmp_path / "files")
    has_run = _interpose(monkeypatch, step, lambda: clear(Storage(url), Partial(_WRITER, "half")), _RENAMING_CALLS)
    if step < 4:
        with pytest.raises(GanglineError) as caught:
            store.commit("half", {}, files)
        assert (caught.value.code, has_run) == ("checkpoint.swept", [step])
        assert _names(url) == []
    else:
        store.commit("half", {}, files)
        store.download("half", tmp_path / "copy")


_CALLS = [(MemoryFileSystem, name) for name in ("info", "pipe_file", "exists", "rm_file", "rm", "find")]
_RENAMING_CALLS = [(LocalFileSystem, "info"), (LocalFileSystem, "pipe_file"), (CheckpointStore, "_rename")]


def _interpose(
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    work: Callable[[], None],
    methods: Sequence[tuple[type, str]] = _CALLS,
) -> list[int]:
    """work: done once, before the call of that number to one of the methods. Returns that number once it was done."""
    calls, done = itertools.count(), list[int]()

    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            if not done and next(calls) == step:
                done.append(step)
                work()
            return original(*arguments, **more)

        return call

    for owner, name in methods:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    return done


@pytest.mark.parametrize(
    "name",
    [
        *(".partial-f3889f6b-18f7-4cc2-a133-1ca56caf8a08", "f3889f6b", ".removed-x", ".partial-c1-7.1-x"),
        *(".partial-c1-7.1.1-..", ".partial-c1-7.0.1-x", ".partial-c1-7.1.1-"),
    ],
)
def test_names_without_a_writer_are_nobodys(name: str) -> None:
    assert parse_partial(name) is None


def test_name_tells_the_writer() -> None:
    partial = Partial(Writer("0a1b", "7.1.12"), "f3889f6b-18f7-4cc2")
    assert parse_partial(partial_name(partial.writer, partial.storage_id)) == partial


async def test_stop_waits_for_nothing_that_is_still_to_be_done(tmp_path: Path, mirror: StandInMirror) -> None:
    async with asyncio.timeout(5):
        async with _running(mirror, Storage(str(tmp_path / "storage"))):
            pass
