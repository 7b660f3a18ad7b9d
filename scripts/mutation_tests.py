"""The tests that `make mutants` runs in a copied tree: which there are, which functions each calls, which come first.

Owns the suites, the one run that measures them, and the runs with a defect. It changes no source and keeps no results.
Called by scripts/mutants.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.call_record import FAILED_VARIABLE, SELECTED_VARIABLE, TESTS_FILE
from scripts.call_tracer import CALLS_VARIABLE, CURRENT, WATCHED_VARIABLE

# The fast tests of each folder: no cluster, and of processes only those that a test of a rank needs. Gangs of ranks are
# slower; only the defects in what several ranks do together meet them.
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
        "tests/integration/training/test_changing_models.py",
        "tests/integration/training/test_exchange_in_ranks.py",
        "tests/integration/training/test_fusion.py",
        "tests/integration/training/test_step_in_ranks.py",
        "tests/integration/training/test_strategies.py",
        "tests/property/test_data_order.py",
        "tests/property/test_fusion.py",
        "tests/property/test_manifest.py",
    ),
}
_SITE = "import os\n\nif os.environ.get({!r}):\n    from scripts import call_tracer  # noqa: F401\n"
_LONGEST_SECONDS = 3600.0
_BEFORE_TESTS = "0.calls"
_SHARED_BY_ALL = ""
RUNNING: set[subprocess.Popen[str]] = set()
"""The test runs under way, for the end of the program."""


@dataclass(frozen=True, slots=True)
class MeasuredTest:
    """A test and the functions that it calls."""

    name: str
    seconds: float
    calls: frozenset[str]  # functions of the watched folders, each as "path::qualified name"

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


class SuiteFailed(Exception):
    """The tests fail without a defect; the message is what they printed."""


def list_test_files(tree: Path, suite: str) -> list[str]:
    roots = [tree / name for name in SUITES[suite]]
    files = [file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("test_*.py")))]
    return [str(file.relative_to(tree)) for file in files]


def measure(tree: Path, test_files: Sequence[str]) -> list[MeasuredTest]:
    """Runs these files once, without a defect."""
    with tempfile.TemporaryDirectory(prefix="gangline-calls-") as name:
        folder = Path(name)
        (folder / CURRENT).symlink_to(_BEFORE_TESTS)
        (tree / "sitecustomize.py").write_text(_SITE.format(CALLS_VARIABLE))
        watched = "\n".join(str(tree / suite) for suite in SUITES)
        environment = {CALLS_VARIABLE: name, WATCHED_VARIABLE: watched}
        code, output = _run(tree, test_files, _LONGEST_SECONDS, environment)
        if code != 0:
            raise SuiteFailed(output)
        return _read_calls(folder, tree)


def _read_calls(folder: Path, tree: Path) -> list[MeasuredTest]:
    kept = json.loads((folder / TESTS_FILE).read_text())
    files: Mapping[str, Sequence[str]] = {**kept["files"], _SHARED_BY_ALL: [_BEFORE_TESTS]}
    calls = {name: _read_files(folder, of_name, tree) for name, of_name in files.items()}
    return [
        MeasuredTest(
            name, seconds, frozenset(calls[_SHARED_BY_ALL] | calls.get(name.split("::")[0], set()) | calls[name])
        )
        for name, seconds in kept["seconds"].items()
        if name in calls  # others were skipped before they began
    ]


def _read_files(folder: Path, names: Sequence[str], tree: Path) -> set[str]:
    called = set()
    for name in names:
        if (folder / name).exists():
            for line in (folder / name).read_text().splitlines():
                file, function = line.split("\t")
                called.add(f"{Path(file).relative_to(tree)}::{function}")
    return called


def select(path: str, function: str, measured: Collection[MeasuredTest], tree: Path) -> list[MeasuredTest]:
    """The tests that may notice a defect there, those first that notice it soonest: near ones, then quick ones.

    function: of the defect; empty when its effect cannot be told from the calls, so that all tests may notice it.
    """
    chosen = [test for test in measured if not function or f"{path}::{function}" in test.calls]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    near = {file for file in {test.file for test in chosen} if module in (tree / file).read_text()}
    touching = {test.name for test in chosen if any(call.startswith(f"{path}::") for call in test.calls)}
    return sorted(chosen, key=lambda test: (test.name not in touching, test.file not in near, test.seconds))


def run_until_failure(tree: Path, tests: Sequence[MeasuredTest], limit_seconds: float) -> tuple[int | None, str | None]:
    """The exit code, None when the limit was reached; and the first test that failed, if one did.

    A file of tests that cannot be loaded has its own name as the name of the test.
    """
    with tempfile.TemporaryDirectory(prefix="gangline-selected-") as name:
        selected, failed = Path(name) / "selected.json", Path(name) / "failed"
        selected.write_text(json.dumps([test.name for test in tests]))
        environment = {SELECTED_VARIABLE: str(selected), FAILED_VARIABLE: str(failed)}
        code, _ = _run(tree, list(dict.fromkeys(test.file for test in tests)), limit_seconds, environment)
        return code, failed.read_text() if failed.exists() else None


def _run(
    tree: Path, tests: Sequence[str], limit_seconds: float, variables: Mapping[str, str]
) -> tuple[int | None, str]:
    """The exit code, None when the limit was reached, and what was printed. Leaves no process behind."""
    options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "scripts.call_record", "--hypothesis-profile=mutants")
    command = [sys.executable, "scripts/run_and_reap.py", sys.executable, "-m", "pytest", *options, *tests]
    # tests/support/examples.py would draw a quarter of the random examples where CI is set.
    environment = {**os.environ, "GANGLINE_EXAMPLES": "all", "PYTHONPATH": str(tree), **variables}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    RUNNING.add(process)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        return None, process.communicate()[0]
    finally:
        RUNNING.discard(process)
    return process.returncode, output
