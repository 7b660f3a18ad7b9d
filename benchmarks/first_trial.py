"""Measures the way from a fresh machine to the first finished trial: commands, minutes, and seconds without output.

Runs the README's commands on a fresh clone of this repository, in an empty home directory, without pip's cache. The
peer is Ray Train, by the commands of its own documentation (https://docs.ray.io/en/latest/train/train.html: pip
install, then a script), with the same model, data, batches and number of ranks, and with torch at the same version.
Both run on a terminal, so their progress bars count as output. The two alternate.

dstack is quoted: by its own documentation (README of https://github.com/dstackai/dstack) a fleet of one's own machines
takes `pip install "dstack[all]"`, `dstack server`, and `dstack apply` for the fleet and for the task. It needs SSH and
Docker on every host, so it is not run here. Run it with `python -m benchmarks.first_trial`.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.process import end_process, run_benchmark
from benchmarks.statistic import summarise

ROOT = Path(__file__).parent.parent
RAY_SCRIPT = Path(__file__).parent / "workload" / "ray_digits.py"
# Both sides install the same build of torch.
TORCH = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
MOST_SECONDS = 1800.0
# What both programs print once the trial has ended well.
ENDING = "COMPLETED"


@dataclass(frozen=True, slots=True)
class Way:
    """A sequence of commands that a user types."""

    name: str  # name of the program
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of one run. Both times are in seconds."""

    seconds: float
    silence: float  # the longest time without output


def make_ways(folder: Path) -> list[Way]:
    """Returns the two ways; the machine has Python and git and nothing else."""
    python = shlex.quote(sys.executable)
    return [
        Way("Gangline", (f"git clone --quiet {shlex.quote(str(ROOT))} gangline", "make -C gangline demo")),
        Way(
            "Ray Train",
            (
                f"{python} -m venv ray",
                f"ray/bin/pip install -U 'ray[train]' {TORCH} scikit-learn",
                f"ray/bin/python {shlex.quote(str(RAY_SCRIPT))} {shlex.quote(str(folder / 'results'))}",
            ),
        ),
    ]


def walk(way: Way, folder: Path) -> Walk:
    """Types the commands one after another. Raises RuntimeError with the end of the output when one of them fails."""
    environment = {**os.environ, "HOME": str(folder), "PIP_NO_CACHE_DIR": "1", "PYTHON": sys.executable}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "GANGLINE_HOME", "GANGLINE_GATEWAY", "GANGLINE_TOKEN"):
        environment.pop(name, None)
    began, silence, output = time.monotonic(), 0.0, b""
    for command in way.commands:
        status, longest, text = _type(command, folder, environment, began + MOST_SECONDS)
        silence, output = max(silence, longest), output + text
        if status:
            raise RuntimeError(f"{way.name}: {command} ended with {status}:\n{output[-3000:].decode(errors='replace')}")
    if ENDING.encode() not in output:
        raise RuntimeError(f"{way.name}: no trial was completed:\n{output[-3000:].decode(errors='replace')}")
    return Walk(time.monotonic() - began, silence)


def _type(command: str, folder: Path, environment: dict[str, str], deadline: float) -> tuple[int, float, bytes]:
    """Runs one command on a terminal. Returns its status, its longest silence and its output."""
    own, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output, heard, silence = b"", time.monotonic(), 0.0
    try:
        while time.monotonic() < deadline:
            is_ready = bool(select.select([own], [], [], 0.2)[0])
            silence = max(silence, time.monotonic() - heard)
            try:
                text = os.read(own, 1 << 16) if is_ready else b""
            except OSError:
                # A terminal that no process holds any more.
                break
            if text:
                output, heard = output + text, time.monotonic()
            elif process.poll() is not None:
                break
    finally:
        end_process(process)
        os.close(own)
    return process.returncode, silence, output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="the way whose name contains this")
    arguments = parser.parse_args()
    print(describe_machine())
    walks: dict[str, list[Walk]] = {}
    for run in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="gl-") as name:
            for way in make_ways(Path(name)):
                if arguments.only.lower() not in way.name.lower():
                    continue
                folder = Path(name) / way.name.split()[0].lower()
                folder.mkdir()
                walked = walk(way, folder)
                walks.setdefault(way.name, []).append(walked)
                print(
                    f"run {run + 1}: {way.name}: {walked.seconds:.0f} s, at most {walked.silence:.1f} s of silence",
                    flush=True,
                )
                shutil.rmtree(folder, ignore_errors=True)
    for way in make_ways(Path("/")):
        if way.name in walks:
            seconds = summarise([walked.seconds for walked in walks[way.name]])
            silence = summarise([walked.silence for walked in walks[way.name]])
            print(
                f"{way.name}: {len(way.commands)} commands, median {seconds.p50 / 60:.1f} minutes "
                f"({seconds.minimum / 60:.1f} to {seconds.maximum / 60:.1f}), silence of at most {silence.p50:.1f} s "
                f"({silence.minimum:.1f} to {silence.maximum:.1f})"
            )
    return 0


if __name__ == "__main__":
    run_benchmark(main)
