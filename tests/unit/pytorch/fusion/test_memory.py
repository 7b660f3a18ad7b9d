"""Records of tuning in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.pytorch.fusion.memory import FolderMemory, local_memory
from tests.support.fusion import record, situation


def test_record_comes_back_as_it_was(tmp_path: Path) -> None:
    memory = FolderMemory(tmp_path / "not" / "yet")
    assert memory.find(situation().family) == []
    memory.keep(record())
    memory.keep(record(key="other-1"))
    assert memory.find(situation().family) == [record()]
    memory.forget(record().key)
    memory.forget(record().key)
    assert memory.find(situation().family) == []


@pytest.mark.parametrize("content", ["", "{", '{"key": 1}', "[]", '{"key": "a", "bucket_bytes": [], "newer": 1}'])
def test_file_that_is_no_record_is_left_out(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"{record().key}.json").write_text(content)
    assert FolderMemory(tmp_path).find(situation().family) == []
    assert "is no record" in caplog.text


def test_folder_that_cannot_be_written_fails_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    FolderMemory(tmp_path / "file" / "folder").keep(record())
    assert "the record is not kept" in caplog.text


def test_folder_is_the_users_own(tmp_path: Path) -> None:
    local_memory({"XDG_CACHE_HOME": str(tmp_path)}).keep(record())
    assert (tmp_path / "gangline" / "fusion" / f"{record().key}.json").exists()
    local_memory({"GANGLINE_FUSION_DIR": str(tmp_path / "named")}).keep(record())
    assert (tmp_path / "named" / f"{record().key}.json").exists()
