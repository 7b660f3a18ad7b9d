"""Makes what is expensive once for all workers of a test run; the first that needs it makes it, the others wait."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TypeVar

import pytest

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


def _folder_of_all_workers(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
