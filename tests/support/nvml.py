"""Compiles the stand-in of libnvidia-ml.so.1 and says with which environment a process loads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stand_in_nvml.c")


class StandInNvml:
    """folder: where the library is compiled to."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler (cc) to make the stand-in of NVML with")
        self._folder = folder
        self._faults = folder / "faults"
        library = folder / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """All of this process's environment, with the stand-in first and no device hidden."""
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = [str(self._folder), *kept.get("LD_LIBRARY_PATH", "").split(":")]
        return {**kept, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), "STAND_IN_NVML": str(self._faults)}

    def break_queries(self, faults: Sequence[tuple[int, str]]) -> None:
        """From now on these queries of these GPUs fail, and no others. Before the first call GPU 7 fails."""
        draft = self._faults.with_name("draft")
        draft.write_text("".join(f"{gpu} {query}\n" for gpu, query in faults))
        draft.replace(self._faults)
