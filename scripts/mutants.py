"""Mutation testing: plants small defects, one at a time, and shows those that no test notices.

Works on copies of the tree, one for each job, and removes them at the end; the tree itself is only read. A defect
counts as noticed when a test fails or the tests take far longer than without it. Called by `make mutants`; its
arguments choose the number of defects, the seed, and the files.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.mutation import Mutation, find_mutations  # noqa: E402 - the folder of this file is not a package

# The fast tests of each folder: without a cluster, and with no processes except those that a test of a rank needs.
SUITES = {
    "services/scheduler/placement": (
        "tests/unit/scheduler",
        "tests/property/test_placement.py",
        "tests/property/test_victim.py",
        "tests/property/test_forecast.py",
        "tests/property/test_simulator.py",
    ),
    "services/scheduler/transition": (
        "tests/unit/scheduler",
        "tests/property/test_scheduler_state.py",
        "tests/property/test_retention.py",
        "tests/property/test_search.py",
        "tests/property/test_health.py",
    ),
    "gangline/pytorch": (
        "tests/unit/pytorch",
        "tests/property/test_data_order.py",
        "tests/property/test_fusion.py",
        "tests/property/test_manifest.py",
    ),
}
# A run with a defect may take this many times as long as one without, and at least so many seconds.
LIMIT_RATIO, LEAST_LIMIT_SECONDS = 3.0, 60.0
NOTICED, SURVIVED, TIMED_OUT = "noticed", "survived", "timed out"


@dataclass(frozen=True, slots=True)
class Mutant:
    """Describes one defect in one file. path: of the file, relative to the tree."""

    path: str
    mutation: Mutation

    def diff(self, source: str) -> str:
        lines, changed = source.splitlines(True), self.mutation.apply(source).splitlines(True)
        return "".join(difflib.unified_diff(lines, changed, self.path, self.path, n=2))


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    sources = {path: (ROOT / path).read_text() for folder in options.only for path in _list_files(folder)}
    known = [Mutant(path, mutation) for path, source in sources.items() for mutation in find_mutations(source)]
    if not known:
        print(f"mutants: {', '.join(options.only)}: there is nothing to change", file=sys.stderr)
        return 2
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))  # noqa: S311 - a seeded sample
    print(f"mutants: {len(chosen)} of {len(known)} in {len(sources)} files, seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        num_jobs = min(options.jobs, len(chosen))
        trees = [stack.enter_context(_copied_tree()) for _ in range(num_jobs)]
        limits = _measure(trees[0], {_suite_of(mutant.path) for mutant in chosen}, num_jobs)
        if limits is None:
            return 1
        outcomes = _try_all(chosen, trees, limits, sources)
    survivors = [mutant for mutant in chosen if outcomes[mutant] == SURVIVED]
    num_late = sum(outcome == TIMED_OUT for outcome in outcomes.values())
    print(f"mutants: {len(survivors)} of {len(chosen)} survived; {num_late} of the noticed ran into their time limit")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Plants defects and shows those no test notices.")
    parser.add_argument("count", nargs="?", type=_at_least_one, default=50, help="how many defects, by default 50")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample, by default 0")
    parser.add_argument("--jobs", type=_at_least_one, default=len(os.sched_getaffinity(0)), help="how many at a time")
    parser.add_argument("--only", nargs="+", type=_covered, default=list(SUITES), help="files or folders to change")
    return parser.parse_args(arguments)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _covered(text: str) -> str:
    """Returns a file or folder of the tree for which a suite is known. Raises argparse.ArgumentTypeError."""
    path = os.path.normpath(text)
    if not (ROOT / path).exists() or not any(_is_below(path, folder) for folder in SUITES):
        raise argparse.ArgumentTypeError(f"{text} is no file or folder in {', '.join(SUITES)}")
    return path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _suite_of(path: str) -> str:
    return next(folder for folder in SUITES if _is_below(path, folder))


def _list_files(path: str) -> list[str]:
    found = ROOT / path
    files = [found] if found.is_file() else sorted(found.rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in files]


@contextlib.contextmanager
def _copied_tree() -> Iterator[Path]:
    """Copies the files that git knows or would add, in their present state."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    with tempfile.TemporaryDirectory(prefix="gangline-mutants-") as name:
        tree = Path(name)
        for path in filter(None, listed.split("\0")):
            if (ROOT / path).is_file():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, tree / path)
        yield tree


def _measure(tree: Path, suites: set[str], num_jobs: int) -> dict[str, float] | None:
    """Returns the time limit of each suite, from its run without a defect; None when that run fails."""
    limits = {}
    for suite in sorted(suites):
        began_at = time.monotonic()
        code, output = _run_tests(tree, SUITES[suite], 3600.0)
        seconds = time.monotonic() - began_at
        if code != 0:
            print(f"{output}\nmutants: the tests of {suite} fail without a defect", file=sys.stderr)
            return None
        limits[suite] = max(LEAST_LIMIT_SECONDS, LIMIT_RATIO * seconds * (1 + (num_jobs > 1)))
        print(f"mutants: the tests of {suite} take {seconds:.0f} s, limit {limits[suite]:.0f} s", flush=True)
    return limits


def _try_all(
    chosen: Sequence[Mutant], trees: Sequence[Path], limits: dict[str, float], sources: dict[str, str]
) -> dict[Mutant, str]:
    """Tries all defects and returns their outcomes. Prints each survivor as soon as it is known."""
    idle: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        idle.put(tree)

    def try_one(mutant: Mutant) -> str:
        tree = idle.get()
        try:
            return _try(mutant, tree, limits[_suite_of(mutant.path)], sources[mutant.path])
        finally:
            idle.put(tree)

    outcomes: dict[Mutant, str] = {}
    pool = ThreadPoolExecutor(len(trees))
    try:
        mutant_by_future = {pool.submit(try_one, mutant): mutant for mutant in chosen}
        for future in as_completed(mutant_by_future):
            mutant = mutant_by_future[future]
            outcomes[mutant] = future.result()
            print(f"{len(outcomes):4} {outcomes[mutant]:9} {mutant.path}:{mutant.mutation.line}", flush=True)
            if outcomes[mutant] == SURVIVED:
                print(mutant.diff(sources[mutant.path]), flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in tuple(_RUNNING):
            process.terminate()
        pool.shutdown()
    return outcomes


def _try(mutant: Mutant, tree: Path, limit_seconds: float, source: str) -> str:
    file = tree / mutant.path
    try:
        _write(file, mutant.mutation.apply(source))
        code, _ = _run_tests(tree, _nearest_first(tree, mutant.path), limit_seconds)
    finally:
        _write(file, source)
    return {0: SURVIVED, None: TIMED_OUT}.get(code, NOTICED)


def _write(file: Path, source: str) -> None:
    """Writes a source and removes its byte code, which counts as fresh when time and size are equal: two defects within
    a second may be equal in both."""
    file.write_text(source)
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def _nearest_first(tree: Path, path: str) -> list[str]:
    """Returns the test files of the suite. Files that name the module of the defect come first, because they notice it
    soonest."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = [tree / one for one in SUITES[_suite_of(path)]]
    files = [file for one in found for file in ([one] if one.is_file() else sorted(one.rglob("test_*.py")))]
    files.sort(key=lambda file: module not in file.read_text())
    return [str(file.relative_to(tree)) for file in files]


_RUNNING: set[subprocess.Popen[str]] = set()


def _run_tests(tree: Path, tests: Sequence[str], limit_seconds: float) -> tuple[int | None, str]:
    """Returns the exit code (None when the limit was reached) and the output. Leaves no process behind."""
    options = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants")
    command = [sys.executable, "scripts/run_and_reap.py", sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    _RUNNING.add(process)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        return None, process.communicate()[0]
    finally:
        _RUNNING.discard(process)
    return process.returncode, output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
