"""Mutation testing: plants small defects, one at a time, and shows those that no test notices.

Works on copies of the tree, one for each job, and removes them at the end; of the tree itself it changes the results
file alone. The tests run once without a defect, which shows the functions that each of them calls. A defect is tried
with the tests that call its function. It counts as noticed when a test fails or the tests take far longer than without
it. A run that was ended goes on from the results file. Called by `make mutants`; its arguments choose the number of
defects, the seed, and the files.
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

# The folder of this file is not a package, so the imports stand below the line that makes it known.
from scripts.mutation import Mutation, find_mutations  # noqa: E402
from scripts.mutation_results import NOTICED, SURVIVED, TIMED_OUT, Outcome, Results  # noqa: E402
from scripts.mutation_tests import (  # noqa: E402
    RUNNING,
    SUITES,
    MeasuredTest,
    SuiteFailed,
    list_test_files,
    measure,
    run_until_failure,
    select,
)

LEAST_LIMIT_SECONDS = 60.0
LIMIT_RATIO = 6.0
NO_TESTS_RAN = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A tree with one defect."""

    path: str  # path of the file, relative to the tree
    mutation: Mutation

    def diff(self, source: str) -> str:
        lines, changed = source.splitlines(True), self.mutation.apply(source).splitlines(True)
        return "".join(difflib.unified_diff(lines, changed, self.path, self.path, n=2))


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    sources = {path: (ROOT / path).read_text() for folder in options.only for path in _list_files(folder)}
    mutants = [Mutant(path, mutation) for path, source in sources.items() for mutation in find_mutations(source)]
    if not mutants:
        print(f"mutants: {', '.join(options.only)}: there is nothing to change", file=sys.stderr)
        return 2
    chosen = random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))  # noqa: S311 - a seeded sample
    print(f"mutants: {len(chosen)} of {len(mutants)} in {len(sources)} files, seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(_copied_tree()) for _ in range(min(options.jobs, len(chosen)))]
        results = Results(options.results, trees[0])
        kept_outcomes = {mutant: results.outcome_of(mutant.path, mutant.mutation) for mutant in chosen}
        outcomes = {mutant: outcome for mutant, outcome in kept_outcomes.items() if outcome is not None}
        if outcomes:
            print(f"mutants: {len(outcomes)} are known from {options.results}", flush=True)
        for mutant, outcome in outcomes.items():
            _show(len(outcomes), mutant, outcome, sources)
        left = [mutant for mutant in chosen if mutant not in outcomes]
        pool = _TreePool(trees)
        try:
            measured = _measure(pool, {_suite_of(mutant.path) for mutant in left}, results)
            outcomes |= _try_all(left, pool, _Trial(measured, sources, results), len(outcomes))
        except SuiteFailed as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            pool.close()
    kinds = Counter(outcome.kind for outcome in outcomes.values())
    late = f"; {kinds[TIMED_OUT]} of the noticed ran into their time limit"
    print(f"mutants: {kinds[SURVIVED]} of {len(chosen)} survived{late}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Plants defects and shows those no test notices.")
    parser.add_argument("count", nargs="?", type=_at_least_one, default=50, help="how many defects, by default 50")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample, by default 0")
    parser.add_argument("--jobs", type=_at_least_one, default=len(os.sched_getaffinity(0)), help="how many at a time")
    parser.add_argument(
        "--results", type=Path, default=ROOT / ".mutants.json", help="where to go on from, by default .mutants.json"
    )
    parser.add_argument("--only", nargs="+", type=_covered, default=list(SUITES), help="files or folders to change")
    return parser.parse_args(arguments)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _covered(text: str) -> str:
    """A file or folder of the tree for which a suite is known."""
    path = os.path.normpath(text)
    if not (ROOT / path).exists() or not any(_is_below(path, folder) for folder in SUITES):
        raise argparse.ArgumentTypeError(f"{text} is no file or folder in {', '.join(SUITES)}")
    return path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _suite_of(path: str) -> str:
    return next(folder for folder in SUITES if _is_below(path, folder))


def _list_files(path: str) -> list[str]:
    location = ROOT / path
    files = [location] if location.is_file() else sorted(location.rglob("*.py"))
    return [str(file.relative_to(ROOT)) for file in files]


@contextlib.contextmanager
def _copied_tree() -> Iterator[Path]:
    """The files that git knows or would add, as they are now."""
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


class _TreePool:
    """Runs work in threads, each call with a copied tree of its own. `close` ends what still runs."""

    def __init__(self, trees: Sequence[Path]) -> None:
        self._idle: SimpleQueue[Path] = SimpleQueue()
        for tree in trees:
            self._idle.put(tree)
        self._threads = ThreadPoolExecutor(len(trees))

    def submit(self, work: Callable[[Path], T]) -> Future[T]:
        return self._threads.submit(self._in_tree, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in tuple(RUNNING):
            process.terminate()
        self._threads.shutdown()

    def _in_tree(self, work: Callable[[Path], T]) -> T:
        tree = self._idle.get()
        try:
            return work(tree)
        finally:
            self._idle.put(tree)


def _measure(pool: _TreePool, suites: set[str], results: Results) -> dict[str, list[MeasuredTest]]:
    """Returns the tests of each suite. Test files that the results file does not know run once, without a defect."""
    files = {suite: list_test_files(ROOT, suite) for suite in suites}
    unknown: dict[str, list[str]] = {}
    for suite in sorted(suites):
        claimed = {file for suite_files in unknown.values() for file in suite_files}
        stale = [file for file in files[suite] if file not in claimed and results.calls_of(file) is None]
        if stale:
            unknown[suite] = stale
    futures = {pool.submit(partial(measure, test_files=stale)): suite for suite, stale in unknown.items()}
    for future in as_completed(futures):
        suite = futures[future]
        try:
            measured = future.result()
        except SuiteFailed as error:
            raise SuiteFailed(f"{error}\nmutants: the tests of {suite} fail without a defect") from None
        results.keep_calls(unknown[suite], measured)
        seconds = sum(test.seconds for test in measured)
        print(f"mutants: measured {len(measured)} tests of {suite}, {seconds:.0f} s", flush=True)
    return {suite: [test for file in files[suite] for test in results.calls_of(file) or ()] for suite in suites}


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries one defect at a time."""

    tests: Mapping[str, Sequence[MeasuredTest]]  # by suite
    sources: Mapping[str, str]
    results: Results

    def run(self, mutant: Mutant, tree: Path) -> Outcome:
        selected = select(mutant.path, mutant.mutation.function, self.tests[_suite_of(mutant.path)], tree)
        outcome = Outcome(SURVIVED)
        if selected:
            outcome = self._run_tests(mutant, tree, selected)
        self.results.keep_outcome(mutant.path, mutant.mutation, outcome)
        return outcome

    def _run_tests(self, mutant: Mutant, tree: Path, selected: Sequence[MeasuredTest]) -> Outcome:
        file, source = tree / mutant.path, self.sources[mutant.path]
        limit_seconds = LEAST_LIMIT_SECONDS + LIMIT_RATIO * sum(test.seconds for test in selected)
        try:
            _write(file, mutant.mutation.apply(source))
            code, test = run_until_failure(tree, selected, limit_seconds)
        finally:
            _write(file, source)
        return Outcome({0: SURVIVED, NO_TESTS_RAN: SURVIVED, None: TIMED_OUT}.get(code, NOTICED), test or "")


def _try_all(left: Sequence[Mutant], pool: _TreePool, trial: _Trial, num_known: int) -> dict[Mutant, Outcome]:
    """Shows each outcome as soon as it is known."""
    outcomes: dict[Mutant, Outcome] = {}
    futures = {pool.submit(partial(trial.run, mutant)): mutant for mutant in left}
    for future in as_completed(futures):
        mutant = futures[future]
        outcomes[mutant] = future.result()
        _show(num_known + len(outcomes), mutant, outcomes[mutant], trial.sources)
    return outcomes


def _show(number: int, mutant: Mutant, outcome: Outcome, sources: Mapping[str, str]) -> None:
    print(f"{number:4} {outcome.kind:9} {mutant.path}:{mutant.mutation.line} {outcome.test}".rstrip(), flush=True)
    if outcome.kind == SURVIVED:
        print(mutant.diff(sources[mutant.path]), flush=True)


def _write(file: Path, source: str) -> None:
    """Byte code counts as fresh when time and size are equal, and two defects within a second may be equal in both."""
    file.write_text(source)
    Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
