"""Modules of another folder beside those of the same names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.determined.import_path import import_from_path
from gangline.errors import GanglineError


def write(folder: Path, version: str) -> Path:
    (folder / "old_package").mkdir(parents=True)
    (folder / "old_model_def.py").write_text(f"import old_package.part\nversion = '{version}'\n")
    (folder / "old_package" / "__init__.py").write_text("")
    (folder / "old_package" / "part.py").write_text(f"version = '{version}'\n")
    return folder


def load() -> Any:
    return importlib.import_module("old_model_def")


def test_modules_of_the_same_names_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = write(tmp_path / "first", "first"), write(tmp_path / "second", "second")
    monkeypatch.syspath_prepend(str(first))
    own, path, writes_bytecode = load(), list(sys.path), sys.dont_write_bytecode
    with import_from_path(second):
        other = load()
        assert (other.version, other.old_package.part.version) == ("second", "second")
    assert other.version == "second"
    assert load() is own
    assert own.old_package.part is sys.modules["old_package.part"]
    assert (sys.path, sys.dont_write_bytecode) == (path, writes_bytecode)
    # A folder of a checkpoint stays as it is.
    assert not list(second.rglob("__pycache__"))
    for name in ("old_model_def", "old_package", "old_package.part"):
        del sys.modules[name]


def test_nothing_stays_behind_after_an_error(tmp_path: Path) -> None:
    path = list(sys.path)
    (tmp_path / "old_broken.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError), import_from_path(tmp_path):
        importlib.import_module("old_broken")
    assert sys.path == path
    assert "old_broken" not in sys.modules
    with import_from_path(write(tmp_path / "next", "next")):
        assert load().version == "next"
    assert "old_model_def" not in sys.modules


def test_blocks_do_not_nest(tmp_path: Path) -> None:
    with (
        import_from_path(tmp_path),
        pytest.raises(GanglineError, match="in use already"),
        import_from_path(tmp_path),
    ):
        pytest.fail("the inner block was entered")
