"""Checkpoints of one rank and of several: committed whole or not at all, verified when read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from gangline.cluster_info import CheckpointInfo, ClusterInfo, TrialInfo
from gangline.core import CheckpointContext, DistributedContext, DownloadMode
from gangline.core.checkpoint_location import location_of
from gangline.core.link import Link
from gangline.core.storage_access.storage import CheckpointStore, describe_files
from gangline.domain.storage.manifest import write_document
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import types_pb2
from services.common.access.user_rights import rights_of
from services.common.rank_rules import RankUser
from tests.support.world import in_ranks


class _RecordingLink(Link):
    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: list[types_pb2.Checkpoint] = []

    def send_checkpoint(self, checkpoint: types_pb2.Checkpoint) -> None:
        self.checkpoints.append(checkpoint)


def _context(url: str, distributed: DistributedContext | None = None, link: Link | None = None) -> CheckpointContext:
    return CheckpointContext(distributed or DistributedContext(), link or Link(), CheckpointStore(url), None)


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, where commit is a rename, and a store without rename."""
    if request.param == "directory":
        return str(tmp_path / "storage")
    return f"memory://{tmp_path.name}"


def _save(context: CheckpointContext, text: str = "weights") -> str:
    with context.store_path({"steps_completed": 4, "who": "me"}) as (path, storage_id):
        (path / "deep").mkdir()
        (path / "deep" / "weights.bin").write_text(text)
        (path / "note.txt").write_text("note")
    return storage_id


def test_a_directory_holds_it_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    storage_id = _save(_context(str(tmp_path / "storage")))
    partial = f".partial-{storage_id}"
    assert sorted(synced[:2]) == ["note.txt", "weights.bin"]
    assert synced[2:] == ["deep", "metadata.json", partial, "checkpoints"]


def test_what_was_stored_is_restored(url: str, tmp_path: Path) -> None:
    link = _RecordingLink()
    context = _context(url, link=link)
    storage_id = _save(context)
    with context.restore_path(storage_id) as path:
        assert (path / "deep" / "weights.bin").read_text() == "weights"
    context.download(storage_id, tmp_path / "copy", selector=lambda name: name == "note.txt")
    assert sorted(entry.name for entry in (tmp_path / "copy").iterdir()) == ["metadata.json", "note.txt"]
    assert context.get_metadata(storage_id)["who"] == "me"
    (report,) = link.checkpoints
    assert (report.id, report.batches_completed) == (storage_id, 4)
    assert dict(report.file_bytes) == {"deep/weights.bin": 7, "note.txt": 4}
    assert report.url == f"{url}/checkpoints/{storage_id}"
    assert json.loads(report.metadata_json) == {"steps_completed": 4, "who": "me"}


def test_failed_block_leaves_no_checkpoint(url: str) -> None:
    link = _RecordingLink()
    context = _context(url, link=link)

    def fail() -> None:
        with context.store_path() as (path, _):
            (path / "half.bin").write_text("half")
            raise ValueError("no space")

    with pytest.raises(ValueError, match="no space"):
        fail()
    assert link.checkpoints == []
    filesystem, root = fsspec.core.url_to_fs(url)
    assert not filesystem.exists(f"{root}/checkpoints")


def test_files_without_a_manifest_are_no_checkpoint(url: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_text("x")
    store = CheckpointStore(url)
    store.upload_files("abc", tmp_path, ["w.bin"])
    with pytest.raises(GanglineError, match="no checkpoint abc at"):
        store.load_metadata("abc")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.write_bytes(b"weighty"), "checkpoint.corrupt"),
        (lambda path: path.write_bytes(b""), "checkpoint.corrupt"),
        (lambda path: path.unlink(), "checkpoint.file_missing"),
    ],
)
def test_damage_is_noticed(tmp_path: Path, damage: Callable[[Path], object], code: str) -> None:
    context = _context(str(tmp_path))
    storage_id = _save(context)
    damage(tmp_path / "checkpoints" / storage_id / "deep" / "weights.bin")
    with pytest.raises(GanglineError) as caught, context.restore_path(storage_id):
        pass
    assert caught.value.code == code
    with pytest.raises(GanglineError) as caught:
        context.download(storage_id, tmp_path / "copy")
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["note.txt", "metadata.json"])
def test_damage_of_the_trials_latest_checkpoint_has_a_code_of_its_own(url: str, tmp_path: Path, name: str) -> None:
    """By which the scheduler knows that an older one may be whole."""
    latest, other_id = _save(_context(url)), _save(_context(url))
    filesystem, root = fsspec.core.url_to_fs(url)
    for storage_id in (latest, other_id):
        filesystem.pipe_file(f"{root}/checkpoints/{storage_id}/{name}", b"nope")
    info = CheckpointInfo(latest, f"{url}/checkpoints/{latest}", 4)
    cluster = ClusterInfo("c1", "7.1.2", 2, "a1", 0, 1, [], url, "", TrialInfo("7.1", 7, 1, {}, {}), info)
    context = CheckpointContext(DistributedContext(), Link(), CheckpointStore(url), cluster)
    codes = []
    for storage_id in (latest, other_id):
        with pytest.raises(GanglineError) as caught, context.restore_path(storage_id):
            pass
        codes.append(caught.value.code)
        with pytest.raises(GanglineError) as caught:
            context.download(storage_id, tmp_path / storage_id)
        codes.append(caught.value.code)
    assert codes == ["checkpoint.latest_corrupt"] * 2 + ["checkpoint.corrupt"] * 2


def _latest_context(url: str, latest: str) -> CheckpointContext:
    """Returns the context of an attempt that the cluster wants to resume from `latest`, and that never waits."""
    info = CheckpointInfo(latest, f"{url}/checkpoints/{latest}", 4)
    cluster = ClusterInfo("c1", "7.1.2", 2, "a1", 0, 1, [], url, "", TrialInfo("7.1", 7, 1, {}, {}), info)
    cluster = replace(cluster, storage_wait_seconds=0.0)
    return CheckpointContext(DistributedContext(), Link(), CheckpointStore(url), cluster)


def _code_of(context: CheckpointContext, storage_id: str, folder: Path) -> set[str]:
    """Returns the code of the error of each way to read it."""
    codes = set()
    with pytest.raises(GanglineError) as caught, context.restore_path(storage_id):
        pass
    codes.add(caught.value.code)
    with pytest.raises(GanglineError) as caught:
        context.download(storage_id, folder)
    codes.add(caught.value.code)
    with pytest.raises(GanglineError) as caught:
        context.get_metadata(storage_id)
    return codes | {caught.value.code}


@pytest.mark.parametrize("name", ["/metadata.json", ""])
def test_a_latest_checkpoint_that_lacks_its_manifest_or_folder_is_damaged(url: str, tmp_path: Path, name: str) -> None:
    latest, other_id = _save(_context(url)), _save(_context(url))
    _save(_context(url))
    filesystem, root = fsspec.core.url_to_fs(url)
    for storage_id in (latest, other_id):
        filesystem.rm(f"{root}/checkpoints/{storage_id}{name}", recursive=True)
    context = _latest_context(url, latest)
    assert _code_of(context, latest, tmp_path / "latest") == {"checkpoint.latest_corrupt"}
    assert _code_of(context, other_id, tmp_path / "other") == {"checkpoint.not_found"}


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_latest_checkpoint_whose_storage_is_away_is_not_damaged(url: str, tmp_path: Path, is_empty: bool) -> None:
    latest = _save(_context(url))
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.rm(f"{root}/checkpoints", recursive=True)
    if is_empty:
        filesystem.makedirs(f"{root}/checkpoints")
    context = _latest_context(url, latest)
    assert _code_of(context, latest, tmp_path / "latest") == {"checkpoint.storage"}
    with pytest.raises(GanglineError, match="so the storage is away as a whole") as caught:
        context.get_metadata(latest)
    assert caught.value.kind is ErrorKind.UNAVAILABLE


def test_a_storage_that_does_not_answer_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path)
    latest = _save(_context(url))
    context = _latest_context(url, latest)

    def fail(self: CheckpointStore, *arguments: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(CheckpointStore, "load_metadata", fail)
    assert _code_of(context, latest, tmp_path / "latest") == {"checkpoint.storage"}
    monkeypatch.undo()
    fsspec.filesystem("file").rm(f"{url}/checkpoints/{latest}", recursive=True)
    monkeypatch.setattr(CheckpointStore, "holds_anything", fail)
    assert _code_of(context, latest, tmp_path / "latest") == {"checkpoint.storage"}


def _squat(place: Path, kind: str) -> None:
    if kind == "file":
        place.write_text("x")
        return
    place.mkdir(mode=0o777)
    (place / "x").write_text("x")
    if kind == "checkpoint":
        (place / "x").rename(place / "weights.bin")
        (place / "metadata.json").write_bytes(write_document({"steps_completed": 4}, describe_files(place)))


@pytest.mark.parametrize("kind", ["file", "folder", "checkpoint"])
def test_what_has_the_name_already_is_no_checkpoint_of_this_trial(tmp_path: Path, kind: str) -> None:
    """Another trial has made it, in a storage that all trials write into."""
    link = _RecordingLink()
    context = _context(str(tmp_path), link=link)
    with ExitStack() as saving:
        path, storage_id = saving.enter_context(context.store_path({"steps_completed": 4}))
        (path / "weights.bin").write_text("weights")
        place = tmp_path / "checkpoints" / storage_id
        place.parent.mkdir()
        _squat(place, kind)
        found = sorted((each, each.stat().st_size) for each in (place, *place.rglob("*")))
        with pytest.raises(GanglineError, match="is there already, and this trial has not made it") as caught:
            saving.close()
    assert caught.value.code == "checkpoint.taken"
    assert not link.checkpoints
    assert sorted((each, each.stat().st_size) for each in (place, *place.rglob("*"))) == found
    # The next one takes a new id.
    assert _save(context) != storage_id


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
def test_a_latest_checkpoint_is_damaged_also_where_its_siblings_cannot_be_listed() -> None:
    """Ranks with an account of their own may not list the checkpoints of other owners."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        latest = _save(_context(root))
        folder = Path(root, "checkpoints")
        shutil.rmtree(folder / latest)
        folder.chmod(0o3733)
        with rights_of(RankUser("ann", 61187, 61187, (61187,), "/tmp", "/bin/sh")):
            with pytest.raises(PermissionError):
                list(folder.iterdir())
            assert _code_of(_latest_context(root, latest), latest, Path(root, "x")) == {"checkpoint.latest_corrupt"}
            storage_id = _save(_context(root))
        assert (folder / storage_id).stat().st_uid == 61187


def test_newer_format_is_refused(tmp_path: Path) -> None:
    context = _context(str(tmp_path))
    storage_id = _save(context)
    manifest = tmp_path / "checkpoints" / storage_id / "metadata.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(GanglineError, match="has format 2, this version of Gangline reads up to 1"):
        context.download(storage_id, tmp_path / "copy")


def test_deleted_checkpoint_is_gone(url: str) -> None:
    context = _context(url)
    storage_id = _save(context)
    context.delete(storage_id)
    with pytest.raises(GanglineError, match="no checkpoint"):
        context.get_metadata(storage_id)


def test_unknown_checkpoint_cannot_be_deleted(url: str) -> None:
    context = _context(url)
    _save(context)
    with pytest.raises(GanglineError, match=f"^no checkpoint abc at {url}/checkpoints/abc$") as caught:
        context.delete("abc")
    assert caught.value.code == "checkpoint.not_found"


def test_folder_that_is_not_there_makes_no_checkpoint(tmp_path: Path) -> None:
    link = _RecordingLink()
    storage = tmp_path / "storage"
    with pytest.raises(GanglineError, match=r"^upload: there is no folder /no/such on rank 0; write the") as caught:
        _context(str(storage), link=link).upload("/no/such")
    assert caught.value.code == "checkpoint.no_folder"
    assert not storage.exists()

    def work(distributed: DistributedContext) -> str:
        own = "/no/such" if distributed.rank == 1 else tmp_path
        with pytest.raises(GanglineError) as caught:
            _context(str(storage), distributed).upload(own, shard=True)
        return caught.value.message

    (message,) = set(in_ranks(2, work))
    assert message.startswith("upload: there is no folder /no/such on rank 1;")
    assert not storage.exists()


@pytest.mark.parametrize("storage_id", ["", ".", "..", ".partial-x", "../code", "a/b", "a\\b"])
def test_what_names_another_folder_is_not_deleted(url: str, storage_id: str) -> None:
    """Nor all checkpoints, by an id that is empty."""
    context = CheckpointContext(DistributedContext(), Link(), CheckpointStore(url), None)
    saved = _save(context)
    with pytest.raises(GanglineError) as caught:
        context.delete(storage_id)
    assert caught.value.code == "checkpoint.id"
    assert context.get_metadata(saved)["who"] == "me"


def test_on_the_cluster_files_go_by_the_schedulers_word(url: str) -> None:
    trial = TrialInfo("7.1", 7, 1, {}, {})
    latest = CheckpointInfo("old", f"{url}/checkpoints/old", 1)
    cluster = ClusterInfo("c1", "7.1.2", 2, "a1", 0, 1, [], url, "", trial, latest)
    link = _RecordingLink()
    context = CheckpointContext(DistributedContext(), link, CheckpointStore(url), cluster)
    with pytest.raises(GanglineError) as caught:
        context.delete("old")
    assert caught.value.code == "checkpoint.needed"
    storage_id = _save(context)
    context.delete("old")
    with pytest.raises(GanglineError, match="save a newer one first"):
        context.delete(storage_id)
    saved, deleted = link.checkpoints
    assert (saved.id, saved.state) == (storage_id, types_pb2.CHECKPOINT_STATE_UNSPECIFIED)
    assert (deleted.id, deleted.state) == ("old", types_pb2.CHECKPOINT_STATE_DELETING)
    assert context.get_metadata(storage_id)["who"] == "me"


def test_ranks_save_together(url: str, tmp_path: Path) -> None:
    def work(distributed: DistributedContext) -> str:
        own = tmp_path / str(distributed.rank)
        own.mkdir()
        (own / f"shard{distributed.rank}.bin").write_text(f"part {distributed.rank}")
        (own / "same.txt").write_text("same")
        metadata = {"steps_completed": 2, f"from{distributed.rank}": True}
        return _context(url, distributed).upload(own, metadata, shard=True)

    (storage_id,) = set(in_ranks(3, work))
    context = _context(url)
    with context.restore_path(storage_id, DownloadMode.NoSharedDownload) as path:
        assert [(path / f"shard{rank}.bin").read_text() for rank in range(3)] == ["part 0", "part 1", "part 2"]
        assert (path / "same.txt").read_text() == "same"
    metadata = context.get_metadata(storage_id)
    assert (metadata["from0"], metadata["from2"], metadata["steps_completed"]) == (True, True, 2)


def test_rank_with_nothing_to_save_takes_part(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.txt").write_text("a")

    def work(distributed: DistributedContext) -> str:
        own = tmp_path / "a" if distributed.rank == 1 else None
        return _context(str(tmp_path / "s"), distributed).upload(own, shard=True)

    (storage_id,) = set(in_ranks(2, work))
    assert (tmp_path / "s" / "checkpoints" / storage_id / "a.txt").read_text() == "a"


def test_ranks_that_save_different_content_under_one_name_conflict(tmp_path: Path) -> None:
    def work(distributed: DistributedContext) -> str:
        own = tmp_path / str(distributed.rank)
        own.mkdir()
        (own / "weights.bin").write_text(f"part {distributed.rank}")
        return _context(str(tmp_path / "s"), distributed).upload(own, shard=True)

    with pytest.raises(GanglineError, match=r"rank 1 saves another weights\.bin"):
        in_ranks(2, work)
    assert not (tmp_path / "s").exists()


def test_shared_download_happens_once_on_a_machine(tmp_path: Path) -> None:
    memory = f"memory://{tmp_path.name}"
    storage_id = _save(_context(memory))

    def work(distributed: DistributedContext) -> Path:
        with _context(memory, distributed).restore_path(storage_id) as path:
            assert (path / "note.txt").read_text() == "note"
            return path

    # One machine after the other: two readers of fsspec's memory:// in one process share one position.
    (first, second), (third, fourth) = (in_ranks(2, work, local_size=2) for _ in range(2))
    assert (first, third) == (second, fourth)
    assert first != third
    assert not first.exists()


@pytest.mark.parametrize("is_directory", [True, False])
def test_damage_is_told_by_all_ranks_of_a_machine(tmp_path: Path, is_directory: bool) -> None:
    """Also by those that have others look: they would read what is damaged."""
    url = str(tmp_path) if is_directory else f"memory://{tmp_path.name}"
    storage_id = _save(_context(url))
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.pipe_file(f"{root}/checkpoints/{storage_id}/note.txt", b"nope")

    def work(distributed: DistributedContext) -> str:
        with pytest.raises(GanglineError) as caught, _context(url, distributed).restore_path(storage_id):
            pass
        return caught.value.code

    assert in_ranks(2, work) == ["checkpoint.corrupt"] * 2


def test_storage_that_cannot_be_read_is_told_by_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage_id = _save(_context(str(tmp_path)))

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gangline.core.storage_access.storage.verify", refuse)

    def work(distributed: DistributedContext) -> str:
        with pytest.raises(GanglineError) as caught, _context(str(tmp_path), distributed).restore_path(storage_id):
            pass
        return caught.value.message

    expected = f"checkpoint {storage_id} could not be read from {tmp_path}: [Errno 13] Permission denied"
    assert in_ranks(2, work) == [expected] * 2


def test_only_the_chief_saves_unsharded(tmp_path: Path) -> None:
    def work(distributed: DistributedContext) -> str:
        context = _context(str(tmp_path), distributed)
        if distributed.is_chief:
            return ""
        with pytest.raises(GanglineError) as caught:
            context.upload(tmp_path)
        return caught.value.message

    assert "save on rank 0, or pass shard=True on all ranks" in in_ranks(2, work)[1]


@pytest.mark.parametrize(
    ("named", "location"),
    [
        ("abc", ("/s", "abc")),
        ("/other/checkpoints/abc", ("/other", "abc")),
        ("s3://bucket/deep/checkpoints/abc/", ("s3://bucket/deep", "abc")),
    ],
)
def test_location_of_a_checkpoint(named: str, location: tuple[str, str]) -> None:
    assert location_of(named, "/s") == location


def test_path_that_is_no_checkpoint() -> None:
    with pytest.raises(GanglineError, match="give its id, or its folder as in /s/checkpoints/ID"):
        location_of("/tmp/model.pt", "/s")


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        (None, "has no steps_completed"),
        ({"epoch": 1}, "has no steps_completed"),
        ({"steps_completed": "many"}, "has 'many' as steps_completed"),
        ({"steps_completed": -1}, "has -1 as steps_completed"),
        ({"steps_completed": None}, "has None as steps_completed"),
    ],
)
def test_on_the_cluster_a_checkpoint_says_how_far_training_was(
    tmp_path: Path, metadata: dict[str, Any] | None, told: str
) -> None:
    """The refusal comes before anything is written."""
    trial = TrialInfo("7.1", 7, 1, {}, {})
    cluster = ClusterInfo("c1", "7.1.1", 1, "a1", 0, 1, [], str(tmp_path), "", trial)
    context = CheckpointContext(DistributedContext(), Link(), CheckpointStore(str(tmp_path)), cluster)
    match = f"the metadata of a checkpoint {told}; give"
    with pytest.raises(GanglineError, match=match) as caught, context.store_path(metadata):
        pytest.fail("the block was entered")
    with pytest.raises(GanglineError):
        context.upload(tmp_path, metadata)
    assert caught.value.code == "checkpoint.steps_completed"
    assert list(tmp_path.iterdir()) == []


def test_one_rank_of_a_sharded_checkpoint_may_say_it_for_all(tmp_path: Path) -> None:
    trial = TrialInfo("7.1", 7, 1, {}, {})
    cluster = ClusterInfo("c1", "7.1.1", 1, "a1", 0, 2, [], str(tmp_path), "", trial)

    def save(distributed: DistributedContext, by_rank: list[dict[str, Any]]) -> str:
        context = CheckpointContext(distributed, Link(), CheckpointStore(str(tmp_path)), cluster)
        try:
            return context.upload(None, by_rank[distributed.rank], shard=True)
        except GanglineError as error:
            return error.code

    assert in_ranks(2, lambda distributed: save(distributed, [{}, {}])) == ["checkpoint.steps_completed"] * 2
    first, second = in_ranks(2, lambda distributed: save(distributed, [{}, {"steps_completed": 3.0}]))
    assert first == second != "checkpoint.steps_completed"


def test_a_checkpoint_is_named_by_whatever_has_its_id(url: str, tmp_path: Path) -> None:
    """Determined's own line is restore_path(info.latest_checkpoint)."""
    storage_id = _save(_context(url))
    context = _latest_context(url, storage_id)
    assert context._cluster is not None
    info = ClusterInfo.parse(context._cluster.to_json())
    latest = info.latest_checkpoint
    assert latest is not None
    assert (latest, latest.id, latest.batches_completed) == (storage_id, storage_id, 4)
    assert json.loads(json.dumps({"from": latest})) == {"from": storage_id}
    sdk = SimpleNamespace(id=storage_id, trial_id="7.1")
    determined = SimpleNamespace(uuid=storage_id, id=None)
    for number, named in enumerate((storage_id, latest, latest.url, sdk, determined)):
        with context.restore_path(named) as path:
            assert (path / "note.txt").read_text() == "note"
        context.download(named, tmp_path / str(number))
        assert (tmp_path / str(number) / "note.txt").read_text() == "note"
        assert context.get_metadata(named)["who"] == "me"


@pytest.mark.parametrize("named", [None, 7, {"id": "x"}, SimpleNamespace(id=7)])
def test_what_names_no_checkpoint_is_refused_in_one_line(tmp_path: Path, named: Any) -> None:
    for read in (
        lambda: _context(str(tmp_path)).get_metadata(named),
        lambda: _context(str(tmp_path)).download(named, tmp_path / "copy"),
        lambda: _context(str(tmp_path)).restore_path(named).__enter__(),
    ):
        with pytest.raises(GanglineError, match=rf"a checkpoint is named by its id.*{type(named).__name__}") as caught:
            read()
        assert caught.value.code == "checkpoint.location"


def test_a_checkpoint_of_another_storage_is_read_from_there(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    storage_id = _save(_context(str(other)))
    _save(_context(str(own)))
    latest = CheckpointInfo(storage_id, f"{other}/checkpoints/{storage_id}", 4)
    with _context(str(own)).restore_path(latest) as path:
        assert path == other / "checkpoints" / storage_id
