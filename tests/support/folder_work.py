"""Work that a test does in a folder, in ranks or in its own process, whose working directory stays as it is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def in_folder(work: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
    """Makes a function run in the folder that is its first argument."""

    def run(folder: Path, *args: P.args, **kwargs: P.kwargs) -> T:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):
            return work(folder, *args, **kwargs)

    return cast("Callable[Concatenate[Path, P], T]", functools.wraps(work)(run))
