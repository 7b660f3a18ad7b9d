"""Compiles the stand-in of libnvidia-ml.so.1 and says with which environment a process loads it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

DOUBLE_BIT_EVENT, XID_EVENT = 2, 8
NO_INSTANCE = (0xFFFFFFFF, 0xFFFFFFFF)
SOURCE = Path(__file__).with_name("stand_in_nvml.c")


def gpu_uuid(index: int) -> str:
    return f"GPU-{index}0000000-aaaa-bbbb-cccc-dddddddddddd"


def mig_uuid(gpu: int, place: int) -> str:
    return f"MIG-{gpu}{place}000000-aaaa-bbbb-cccc-dddddddddddd"


class StandInNvml:
    """folder: where the library is compiled to. library: it; a process that has loaded it finds it by its name."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler (cc) to make the stand-in of NVML with")
        self._folder = folder
        self._faults = folder / "faults"
        self._events = folder / "events"
        self.library = folder / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{self.library.name}"]
        subprocess.run([*command, "-o", str(self.library), str(SOURCE)], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """All of this process's environment, with the stand-in first and no device hidden."""
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = [str(self._folder), *kept.get("LD_LIBRARY_PATH", "").split(":")]
        files = {"STAND_IN_NVML": str(self._faults), "STAND_IN_NVML_EVENTS": str(self._events)}
        return {**kept, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), **files}

    def break_queries(self, faults: Sequence[tuple[int, str]]) -> None:
        """From now on these queries of these GPUs fail, and no others. Before the first call GPU 7 fails.

        Counters are words, too: (3, "ecc=2"). stand_in_nvml.c lists them.
        """
        draft = self._faults.with_name("draft")
        draft.write_text("".join(f"{gpu} {query}\n" for gpu, query in faults))
        draft.replace(self._faults)

    def raise_xid(self, gpu: int, code: int, instance: tuple[int, int] = NO_INSTANCE) -> None:
        """For those that watch this GPU now. instance: the GPU instance and compute instance of a MIG device."""
        with self._events.open("a") as file:
            file.write(f"{gpu} {XID_EVENT} {code} {instance[0]} {instance[1]}\n")

    def raise_double_bit_error(self, gpu: int) -> None:
        """As a driver says it that raises no XID of it."""
        with self._events.open("a") as file:
            file.write(f"{gpu} {DOUBLE_BIT_EVENT} 0 {NO_INSTANCE[0]} {NO_INSTANCE[1]}\n")

    def watched(self) -> set[int]:
        """Returns the GPUs whose events are being watched now."""
        try:
            return {int(line) for line in self._events.with_name("events.watched").read_text().split()}
        except FileNotFoundError:
            return set()

    def is_hung(self) -> bool:
        """Whether a call has come to a GPU that hangs."""
        return self._events.with_name("events.hung").exists()

    def forget_events(self) -> None:
        """Before another agent starts."""
        for path in self._events.parent.glob("events*"):
            path.unlink()
