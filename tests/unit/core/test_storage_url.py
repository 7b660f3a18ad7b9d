"""A storage that is none is refused by the library before fsspec opens anything."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from gangline import core
from gangline.core.checkpoint_location import location_of
from gangline.errors import GanglineError

_FOREIGN = [
    ("http://127.0.0.1:9/storage", "storage.protocol"),
    ("memory://storage", "storage.protocol"),
    ("zip://inner::file:///x.zip", "storage.chain"),
    ("simplecache::s3://bucket", "storage.chain"),
]


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []
    monkeypatch.setattr(fsspec.core, "url_to_fs", urls.append)
    return urls


@pytest.mark.parametrize(("url", "code"), _FOREIGN)
def test_context_opens_no_foreign_storage(url: str, code: str, opened: list[str]) -> None:
    with pytest.raises(GanglineError) as failure:
        core.init(checkpoint_storage=url)
    assert failure.value.code == code
    assert url in failure.value.message
    assert opened == []


@pytest.mark.parametrize(("url", "code"), _FOREIGN)
def test_training_goes_on_from_no_foreign_checkpoint(url: str, code: str, opened: list[str]) -> None:
    with pytest.raises(GanglineError) as failure:
        location_of(f"{url}/checkpoints/c1", "/storage")
    assert failure.value.code == code
    assert opened == []


def test_other_storages_stay_possible(tmp_path: Path) -> None:
    assert location_of(f"{tmp_path}/checkpoints/c1", "s3://bucket/x") == (str(tmp_path), "c1")
    assert location_of("s3://other/checkpoints/c1", "/storage") == ("s3://other", "c1")
    assert location_of("memory://x/checkpoints/c1", "memory://y") == ("memory://x", "c1")
