"""Makes what is expensive once for all workers of a test run; the first that needs it makes it, the others wait."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.source import ROOT

T = TypeVar("T")


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """Returns make(folder), which can be pickled. name: of the value and its folder, unique among all tests."""
    folder = _folder_of_all_workers(factory) / name
    made = folder.with_name(f"{name}.pkl")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not made.exists():
            value = make(folder)
            made.write_bytes(pickle.dumps(value))
            return value
    loaded: T = pickle.loads(made.read_bytes())
    return loaded


def install_once(name: str, what: str, command: Callable[[Path], list[str]]) -> Path:
    """Returns a folder of this checkout that the first caller fills, also for later test runs. command: makes ready for
    pip, and returns the rest of its command line, with the interpreter first. Outside of CI the test is skipped where
    pip cannot install."""
    folder = ROOT / ".tools" / name
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / "installed").exists():
            python, *arguments = command(folder)
            pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode and "CI" not in os.environ:
                pytest.skip(f"{what} cannot be installed: {done.stderr.strip()[-300:]}")
            assert done.returncode == 0, done.stderr
            (folder / "installed").touch()
    return folder


def _folder_of_all_workers(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
