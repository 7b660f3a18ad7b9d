"""TensorBoard files and their way to storage: directly, in the background, or when the script says so."""

from __future__ import annotations

import logging
from pathlib import Path

import fsspec
import pytest

from gangline import core
from gangline.core import TensorboardMode
from gangline.core import context as context_module
from gangline.core.tensorboard import TensorboardFolder
from gangline.errors import GanglineError
from gangline.pytorch.trial.tensorboard_writer import TorchWriter
from tests.support.event_file import read_scalars


def _content(url: str) -> dict[str, bytes]:
    filesystem, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(f"{root}/"): filesystem.cat_file(path) for path in filesystem.find(root)}


def test_a_directory_is_written_to_directly(tmp_path: Path) -> None:
    folder = TensorboardFolder(str(tmp_path), "7.1", 2, TensorboardMode.AUTO)
    assert folder.path == tmp_path / "tensorboard" / "7.1" / "rank2"
    folder.close()
    assert folder.path.is_dir()


def test_other_storage_gets_what_has_changed(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    folder = TensorboardFolder(url, "7.1", 0, TensorboardMode.AUTO)
    (folder.path / "deep").mkdir()
    (folder.path / "deep" / "events").write_text("one")
    folder.upload()
    assert _content(f"{url}/tensorboard/7.1") == {"deep/events": b"one"}
    (folder.path / "deep" / "events").write_text("one, two")
    (folder.path / "late").write_text("late")
    temporary = folder.path
    folder.close()
    folder.close()
    assert _content(f"{url}/tensorboard/7.1") == {"deep/events": b"one, two", "late": b"late"}
    assert not temporary.exists()


def test_manual_mode_sends_what_the_script_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{tmp_path.name}"
    # In the place of an object store, which is copied to as well.
    monkeypatch.setattr(context_module, "check_storage_url", lambda url, cluster_url: None)
    with core.init(checkpoint_storage=url, tensorboard_mode=TensorboardMode.MANUAL) as context:
        for name in ("keep.txt", "drop.txt"):
            (context.train.get_tensorboard_path() / name).write_text(name)
        context.train.upload_tensorboard_files(
            selector=lambda path: path.name == "keep.txt",
            mangler=lambda path, rank: path.with_name(f"{rank}-{path.name}"),
        )
    assert _content(f"{url}/tensorboard") == {"0-keep.txt": b"keep.txt"}


def test_storage_that_fails_is_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = TensorboardFolder(f"simplecache::file://{tmp_path}/file", "", 0, TensorboardMode.AUTO)
    (folder.path / "events").write_text("one")
    with caplog.at_level(logging.WARNING):
        folder.close()
    (warning,) = [record.getMessage() for record in caplog.records if "TensorBoard" in record.getMessage()]
    assert warning.startswith(f"TensorBoard files do not reach simplecache::file://{tmp_path}/file/tensorboard: ")


def test_writer_of_a_script_writes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with core.init():
        writer = TorchWriter()
        writer.add_scalar("loss", 0.25, 3)
        writer.close()
    assert read_scalars(tmp_path / "tensorboard") == {"loss": {3: 0.25}}


def test_storage_as_in_an_experiment_file(tmp_path: Path) -> None:
    shared = {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "deep"}
    with core.init(checkpoint_storage=shared) as context:
        assert context.checkpoint.storage_url == str(tmp_path / "deep")
    with pytest.raises(GanglineError, match="give an fsspec URL instead, as in s3://bucket/prefix"):
        core.init(checkpoint_storage={"type": "s3", "bucket": "b"})
