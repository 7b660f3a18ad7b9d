"""Runs `pip ARGUMENTS` of this interpreter and never stays silent for long: at most 8 seconds without a line.

On a terminal pip draws its own bars. Elsewhere it says nothing while it unpacks, which takes minutes on a busy machine;
this prints how many of the packages are there. Called by scripts/setup and scripts/demo_pythons.py.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

SILENCE_SECONDS = 8.0
_STEP = re.compile(r" *((?:Collecting|Downloading|Using cached|Building|Installing) .*)")
_INSTALLING = "Installing collected packages: "


class Progress:
    """Turns pip's lines into ours. site_packages: where pip puts one folder for each package that is there."""

    def __init__(self, site_packages: Path, began_at: float) -> None:
        self._site_packages = site_packages
        self._began_at = began_at
        self._step = "starting"
        self._expected: set[str] = set()

    def on_line(self, line: str) -> str | None:
        """Returns the line to print; None for one that no user needs."""
        match = _STEP.match(line)
        if match is None:
            return None
        self._step = match[1].strip()
        if self._step.startswith(_INSTALLING):
            self._expected = {_normal(name) for name in self._step.removeprefix(_INSTALLING).split(", ")}
            self._step = f"Installing {len(self._expected)} packages"
        return None if self._step.startswith("Collecting") else self._step

    def on_silence(self, now: float) -> str:
        """Returns a line about the present step."""
        done = f", {self._count_installed()} of them are there" if self._expected else ""
        return f"{self._step}{done} ({now - self._began_at:.0f} s)"

    def _count_installed(self) -> int:
        names = {_normal(path.name.partition("-")[0]) for path in self._site_packages.glob("*.dist-info")}
        return len(names & self._expected)


def _normal(name: str) -> str:
    """Returns a package's name as folders have it: "ruamel.yaml" and "Ruamel-YAML" are one package."""
    return re.sub(r"[-_.]+", "_", name.strip()).lower()


def follow(lines: Iterable[str], progress: Progress, silence_seconds: float, output: IO[str]) -> None:
    """Prints until the lines end."""
    received: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            received.put(line)
        received.put(None)

    threading.Thread(target=read, daemon=True).start()
    spoke_at = time.monotonic()
    while True:
        try:
            line = received.get(timeout=max(0.0, spoke_at + silence_seconds - time.monotonic()))
            if line is None:
                return
            text = progress.on_line(line.rstrip("\n"))
        except queue.Empty:
            text = progress.on_silence(time.monotonic())
        if text is not None:
            spoke_at = time.monotonic()
            print(f"setup: {text}", file=output, flush=True)


def main(arguments: list[str]) -> int:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if sys.stdout.isatty():
        # From this version on pip draws a bar for each download and one for the installation.
        subprocess.run([*pip, "install", "-q", "--upgrade", "pip>=25.1"], check=True)
        return subprocess.run([*pip, *arguments], check=False).returncode
    target = next((arguments[place + 1] for place, word in enumerate(arguments) if word == "--python"), sys.executable)
    paths = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([target, "-c", paths], capture_output=True, text=True, check=True).stdout.strip()
    process = subprocess.Popen(
        [*pip, *arguments, "--progress-bar", "off"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    follow(process.stdout, Progress(Path(found), time.monotonic()), SILENCE_SECONDS, sys.stdout)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
