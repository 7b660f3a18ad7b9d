"""The cache of code archives: which entries are removed, and which never."""

from __future__ import annotations

import os
from pathlib import Path

from services.common.code_cache import CodeCache, CodeLimits, FetchCount

NOW = 1e9


def _cache(folder: Path, **entries: tuple[int, float]) -> CodeCache:
    """entries: size, and seconds since the last use, by name."""
    for name, (num_bytes, age) in entries.items():
        path = folder / f"{name}.tar.gz"
        path.write_bytes(b"x" * num_bytes)
        os.utime(path, (NOW - age, NOW - age))
    return CodeCache(folder)


def _names(cache: CodeCache) -> set[str]:
    return {path.name.removesuffix(".tar.gz") for path in cache.folder.glob("*.tar.gz")}


def test_the_least_recently_used_are_removed_until_the_limit_holds(tmp_path: Path) -> None:
    cache = _cache(tmp_path, old=(1, 30), middle=(4, 20), recent=(4, 10))
    cache.prune(CodeLimits(8), NOW)
    assert _names(cache) == {"middle", "recent"}
    cache.prune(CodeLimits(7), NOW)
    assert _names(cache) == {"recent"}
    assert cache.num_bytes() == 4
    cache.prune(CodeLimits(0), NOW)
    assert list(tmp_path.iterdir()) == [], "no lock files stay without their entries"


def test_a_use_makes_an_entry_recent(tmp_path: Path) -> None:
    cache = _cache(tmp_path, first=(4, 30), second=(4, 20))
    cache.touch("first")
    cache.prune(CodeLimits(4), NOW)
    assert _names(cache) == {"first"}


def test_an_entry_beyond_the_age_is_removed_whatever_room_there_is(tmp_path: Path) -> None:
    cache = _cache(tmp_path, stale=(1, 101), fresh=(1, 99))
    cache.prune(CodeLimits(100, 100.0), NOW)
    assert _names(cache) == {"fresh"}


async def test_an_entry_in_use_is_never_removed(tmp_path: Path) -> None:
    """Neither for its age nor for its size, nor on a full disk; the others go in its place."""
    cache = _cache(tmp_path, used=(9, 30), other=(1, 10))
    for is_exclusive in (False, True):
        lock = await cache.take("used", is_exclusive=is_exclusive, wait_seconds=1)
        cache.prune(CodeLimits(9, 20.0), NOW)
        cache.drop()
        assert _names(cache) == {"used"}
        os.close(lock)
    cache.drop()
    assert _names(cache) == set()


async def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path) -> None:
    """The file of the lock is removed with its entry; the next two processes have to meet at the same file."""
    cache = _cache(tmp_path, entry=(1, 1))
    first = await cache.take("entry", is_exclusive=True, wait_seconds=1)
    cache.lock_path("entry").unlink()
    second = await cache.take("entry", is_exclusive=True, wait_seconds=1)
    assert cache._try_lock("entry", 1) is None
    os.close(first)
    assert cache._try_lock("entry", 1) is None
    os.close(second)


async def test_downloads_without_a_living_runner_are_removed(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    for name in ("dead", "living"):
        cache.draft_path(name).write_bytes(b"half")
    (tmp_path / ".abc.17").write_bytes(b"half")
    os.utime(tmp_path / ".abc.17", (NOW - 4000, NOW - 4000))
    lock = await cache.take("living", is_exclusive=True, wait_seconds=1)
    cache.prune(CodeLimits(), NOW)
    os.close(lock)
    assert {path.name for path in cache._list() if path.name.startswith(".")} == {".living.draft"}


def test_counters_and_limits_outlive_unreadable_files(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    assert (cache.load_count(), cache.load_limits()) == (FetchCount(), CodeLimits())
    cache.count_fetch(10)
    cache.count_fetch(5)
    assert cache.load_count() == FetchCount(2, 15)
    cache.write_limits(CodeLimits(7, 8.0))
    assert cache.load_limits() == CodeLimits(7, 8.0)
    for name in ("fetched.json", "limits.json"):
        (tmp_path / name).write_text("[1")
    assert (cache.load_count(), cache.load_limits()) == (FetchCount(), CodeLimits())
