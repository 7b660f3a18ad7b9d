"""Runs the benchmarks one after another; each prints the machine, its figures and its peer's from the same run.

Names of benchmarks as arguments run only those. SIGTERM and SIGINT end the present benchmark, with all of its
programs, and the rest is not run. Called by `make bench`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent


class Runner:
    """Runs benchmarks and passes signals on to the present one. signal_number: of the newest signal; 0 before one."""

    def __init__(self) -> None:
        self.signal_number = 0
        self._benchmark: subprocess.Popen[bytes] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def run(self, name: str) -> int:
        """Returns the benchmark's exit status."""
        # In a process group of its own, the benchmark receives an interrupt of the terminal once, through this process.
        self._benchmark = subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, process_group=0)
        if self.signal_number:
            self._benchmark.send_signal(self.signal_number)
        return self._benchmark.wait()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.signal_number = number
        if self._benchmark is not None:
            self._benchmark.send_signal(number)


def main(names: list[str]) -> int:
    available = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())
    unknown = [name for name in names if name not in available]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are {', '.join(available)}")
        return 2
    runner, failed = Runner(), []
    for name in names or available:
        print(f"== {name}", flush=True)
        failed += [name] if runner.run(name) else []
        if runner.signal_number:
            return 128 + runner.signal_number
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
