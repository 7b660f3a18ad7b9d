"""A benchmark's programs end with it, whatever ends it. Real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import process
from gangline.local.identity import find_marked, stop
from tests.support.source import ROOT

_VARIABLE = "GANGLINE_TEST_OF_BENCHMARKS"
_AT_TURNSTILE = """
import time
from benchmarks.process import run_benchmark, torchrun
from benchmarks.turnstile import programs_at_turnstile

def main():
    with programs_at_turnstile({"torchrun": [*torchrun(2), "bare.py", "overhead"]}, ["--blocks", "100"]):
        print("ready", flush=True)
        time.sleep(100)

run_benchmark(main)
"""
# Its child, in a session of its own, outlives it.
_LAUNCHER = """
import signal, subprocess, sys, time
subprocess.Popen(["sleep", "100"], start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(100)
"""
# Its launcher ends by SIGKILL alone, which comes soon.
_WITH_LAUNCHER = f"""
import subprocess, sys
from benchmarks import process
from benchmarks.process import run_benchmark
process.STOP_SECONDS = 0.2
run_benchmark(lambda: subprocess.run([sys.executable, "-c", {_LAUNCHER!r}]).returncode)
"""


class _Started:
    """A program of this test. The programs below it have its mark."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, _VARIABLE: self.mark, "PYTHONPATH": f"{directory}:{ROOT}"},
            stdout=subprocess.PIPE,
        )

    def wait_ready(self, fewest: int) -> None:
        """Returns when the program has printed that it is ready and at least so many processes run."""
        assert self.process.stdout is not None
        assert any(line == b"ready\n" for line in self.process.stdout)
        deadline = time.monotonic() + 10.0
        # A process has no environment while it begins another program.
        while self.num_running() < fewest:
            assert time.monotonic() < deadline, f"{self.num_running()} of {fewest} processes run"
            time.sleep(0.01)

    def num_running(self) -> int:
        return len(find_marked(_VARIABLE, self.mark))


@contextmanager
def _started(command: Sequence[str], directory: Path = ROOT) -> Iterator[_Started]:
    started = _Started(command, directory)
    try:
        yield started
    finally:
        stop(find_marked(_VARIABLE, started.mark), 0.0)
        started.process.communicate()


def test_programs_at_the_turnstile_end_with_the_benchmark() -> None:
    with _started([sys.executable, "-c", _AT_TURNSTILE]) as benchmark:
        # The benchmark, torchrun and its ranks.
        benchmark.wait_ready(4)
        benchmark.process.send_signal(signal.SIGTERM)
        assert benchmark.process.wait(60) == 128 + signal.SIGTERM
        assert not benchmark.num_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_programs_below_a_program_end_with_the_benchmark(number: signal.Signals) -> None:
    with _started([sys.executable, "-c", _WITH_LAUNCHER]) as benchmark:
        benchmark.wait_ready(3)
        benchmark.process.send_signal(number)
        assert benchmark.process.wait(30) == 128 + number
        assert not benchmark.num_running()


def test_ranks_end_with_a_launcher_that_has_to_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.1)
    with _started([sys.executable, "-c", _LAUNCHER]) as launcher:
        launcher.wait_ready(2)
        process.end_process(launcher.process)
        assert launcher.process.returncode == -signal.SIGKILL
        assert not launcher.num_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_benchmarks_end_with_the_present_one(tmp_path: Path, number: signal.Signals) -> None:
    for path in ("scripts/bench.py", "benchmarks/__init__.py", "benchmarks/process.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for name in ("first", "second"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"{_WITH_LAUNCHER}# __main__")
    with _started([sys.executable, "scripts/bench.py"], tmp_path) as bench:
        bench.wait_ready(4)
        bench.process.send_signal(number)
        output, _ = bench.process.communicate(timeout=30)
        assert (bench.process.returncode, b"second" in output) == (128 + number, False)
        assert not bench.num_running()


def test_every_benchmark_is_run_so() -> None:
    programs = [path for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    assert len(programs) > 20
    assert [path.name for path in programs if not path.read_text().endswith("    run_benchmark(main)\n")] == []
