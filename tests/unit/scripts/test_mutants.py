"""scripts/mutation.py and mutants.py: which defects there are, and that the tree stays as it is."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.mutation import find_mutations
from scripts.mutation_tests import MeasuredTest, select
from tests.support import examples
from tests.support.source import ROOT
from tests.support.wait import until, within

SOURCE = '''"""Doc 1."""

from __future__ import annotations

LIMIT: int | None = 3


def first(values: list[int], least: int = 0) -> int | None:
    """The first above 7."""
    assert least < 9, "1 < 2"
    for välue in values:
        if välue > least and not välue % 2:
            _log.info("found", number=1)
            return max(välue, 4)
        values.append(välue)
    raise ValueError(f"{least + 1} of {len(values)}")
'''


def _changed_lines(source: str) -> set[tuple[int, str]]:
    return {
        (mutation.line, mutation.apply(source).splitlines()[mutation.line - 1].strip())
        for mutation in find_mutations(source)
    }


def test_the_defects_of_a_function() -> None:
    assert _changed_lines(SOURCE) == {
        (5, "LIMIT: int | None = 4"),
        (8, "def first(values: list[int], least: int = 1) -> int | None:"),
        (12, "if (välue > least or not välue % 2):"),
        (12, "if (not välue % 2):"),
        (12, "if (välue > least):"),
        (12, "if (välue >= least) and not välue % 2:"),
        (12, "if (välue <= least) and not välue % 2:"),
        (12, "if välue > least and (välue % 2):"),
        (12, "if välue > least and not (välue * 2):"),
        (12, "if välue > least and not välue % 3:"),
        (14, "return min(välue, 4)"),
        (14, "return max(välue, 5)"),
        (15, "pass"),
        (16, "pass"),
    }


@pytest.mark.parametrize(
    "folder", ["services/scheduler/placement", "services/scheduler/transition", "gangline/pytorch"]
)
def test_each_defect_in_our_own_files_is_another_program_with_the_same_signatures(folder: str) -> None:
    for file in sorted((ROOT / folder).glob("*.py")):
        source = file.read_text()
        original = ast.parse(source)
        dumped, signatures = ast.dump(original), _signatures(original)
        for mutation in find_mutations(source)[:: 700 // examples.examples(100)]:
            changed = ast.parse(mutation.apply(source))
            assert ast.dump(changed) != dumped
            assert _signatures(changed) == signatures


def _signatures(tree: ast.Module) -> list[tuple[str | None, ...]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        (
            function.name,
            ast.get_docstring(function),
            *(ast.unparse(note) for arg in function.args.args if (note := arg.annotation)),
        )
        for function in functions
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the scripts, one module and one test, which notices a wrong sign and no wrong step."""
    (tmp_path / "scripts").mkdir()
    for file in [*(ROOT / "scripts").glob("mut*.py"), *(ROOT / "scripts").glob("call_*.py")]:
        shutil.copy(file, tmp_path / "scripts")
    shutil.copy(ROOT / "scripts/run_and_reap.py", tmp_path / "scripts")
    _write(
        tmp_path / "services/scheduler/placement/sum.py",
        "def next_of(one):\n    return one + 1\n",
    )
    _write(
        tmp_path / "tests/unit/scheduler/test_sum.py",
        "from services.scheduler.placement.sum import next_of\n\n\ndef test_sum():\n    assert next_of(0) > 0\n",
    )
    for name in ("placement", "victim", "forecast", "simulator"):
        _write(tmp_path / f"tests/property/test_{name}.py", "def test_nothing():\n    pass\n")
    _write(
        tmp_path / "tests/conftest.py",
        "from hypothesis import settings\n\nsettings.register_profile('mutants', derandomize=True, database=None)\n",
    )
    # No run loads a plugin that it does not use.
    _write(tmp_path / "pytest.ini", "[pytest]\naddopts = --disable-plugin-autoload -p _hypothesis_pytestplugin\n")
    # A package with a file of its own comes before one that is installed.
    for package in ("services", "services/scheduler", "services/scheduler/placement"):
        _write(tmp_path / package / "__init__.py", "")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "scripts/mutants.py", *arguments, "--only", "services/scheduler/placement"]


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def _sources(project: Path) -> dict[str, str]:
    return {str(file): file.read_text() for file in project.rglob("*.py")}


def _run(project: Path, copies: Path) -> str:
    """All defects of the project; what was printed."""
    done = subprocess.run(
        _command("99", "--jobs", "1"),
        cwd=project, env=_environment(copies), capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_survivors_are_shown_and_the_tree_stays_as_it_is(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A later run tries survivors alone, and only when something changed."""
    copies, before = tmp_path_factory.mktemp("copies"), _sources(project)
    printed = _run(project, copies)
    assert "measured 5 tests" in printed
    assert "mutants: 2 of 2 in 2 files, seed 0" in printed
    assert "mutants: 1 of 2 survived" in printed
    assert "-    return one + 1\n+    return one + 2\n" in printed
    assert "one - 1" not in printed
    assert _sources(project) == before
    assert list(copies.iterdir()) == []
    again = _run(project, copies)
    assert "mutants: 2 are known from" in again
    assert "measured" not in again
    assert "mutants: 1 of 2 survived" in again
    _write(
        project / "tests/unit/scheduler/test_step.py",
        "from services.scheduler.placement.sum import next_of\n\n\ndef test_step():\n    assert next_of(0) == 1\n",
    )
    with_the_test = _run(project, copies)
    assert "mutants: 1 are known from" in with_the_test
    assert "measured 1 tests" in with_the_test
    assert "mutants: 0 of 2 survived" in with_the_test


def test_calls_in_other_processes_belong_to_the_test_that_runs(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A process that was forked from one of an earlier test, too: the fork server lives on."""
    _write(
        project / "tests/unit/scheduler/test_sum.py",
        """import multiprocessing, subprocess, sys

SUM = '__import__("services.scheduler.placement.sum", fromlist=["next_of"]).next_of(0) > 0'

def test_exec():
    subprocess.run([sys.executable, "-c", f"assert {SUM}"], check=True)

def test_fork():
    assert multiprocessing.get_context("fork").Pool(1).apply(eval, (SUM,))

def test_fork_server():
    assert multiprocessing.get_context("forkserver").Pool(1).apply(eval, (SUM,))

def test_the_same_fork_server():
    assert multiprocessing.get_context("forkserver").Pool(1).apply(eval, (SUM,))
""",
    )
    assert "mutants: 1 of 2 survived" in _run(project, tmp_path_factory.mktemp("copies"))
    kept = json.loads((project / ".mutants.json").read_text())["calls"]["tests/unit/scheduler/test_sum.py"]
    assert kept["functions"] == ["services/scheduler/placement/sum.py::next_of"]
    assert [calls for _, _, calls in kept["tests"]] == [[0], [0], [0], [0]]


def test_a_defect_is_tried_with_the_tests_that_call_its_function(tmp_path: Path) -> None:
    for file, text in (("near.py", "from services.sum import add"), ("far.py", "")):
        _write(tmp_path / "tests" / file, text)
    calls = frozenset({"services/sum.py::add", "services/sum.py::Sum.total"})
    quick, slow, far, unrelated = (
        MeasuredTest("tests/near.py::quick", 1.0, calls),
        MeasuredTest("tests/near.py::slow", 2.0, calls),
        MeasuredTest("tests/far.py::far", 0.1, calls),
        MeasuredTest("tests/far.py::other", 0.1, frozenset({"services/other.py::add"})),
    )
    tests = [unrelated, far, slow, quick]
    assert select("services/sum.py", "Sum.total", tests, tmp_path) == [quick, slow, far]
    assert select("services/sum.py", "Sum.mean", tests, tmp_path) == []
    assert select("services/sum.py", "", tests, tmp_path) == [quick, slow, far, unrelated]


def test_a_defect_names_its_function() -> None:
    source = """LIMIT = 1


class Sum:
    bound: int = 2

    def total(self, least=3):
        def inner():
            return 4

        return inner() + 5


@lru_cache
def cached():
    return 6
"""
    functions = {mutation.text: mutation.function for mutation in find_mutations(source) if mutation.text.isdecimal()}
    inner, total = "Sum.total.<locals>.inner", "Sum.total"
    assert functions == {"2": "", "3": "", "4": total, "5": inner, "6": total, "7": ""}


async def test_ending_it_leaves_no_copy_and_no_process(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copies, pid_file = tmp_path_factory.mktemp("copies"), project / "pid"
    # Without a defect the test passes. With any defect it says who runs it, and never ends.
    _write(
        project / "tests/unit/scheduler/test_sum.py",
        "import os, pathlib, threading\n\nfrom services.scheduler.placement.sum import next_of\n\n\ndef test_sum():\n"
        "    if next_of(0) != 1:\n"
        f"        pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}}\\n')\n"
        "        threading.Event().wait()\n",
    )
    before = _sources(project)
    process = await asyncio.create_subprocess_exec(*_command("1", "--jobs", "1"), cwd=project, env=_environment(copies))
    try:
        await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the test of the defect", 60)
        process.send_signal(signal.SIGTERM)
        assert await within(60, process.wait()) == 143
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert list(copies.iterdir()) == []
    assert _sources(project) == before


def test_tests_that_fail_without_a_defect_end_it(project: Path) -> None:
    _write(project / "tests/unit/scheduler/test_sum.py", "def test_sum():\n    assert 1 == 2\n")
    done = subprocess.run(_command("1"), cwd=project, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 1
    assert "the tests of services/scheduler/placement fail without a defect" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0"], "argument count: must be a whole number of at least 1, not '0'"),
        (["--only", "services/agent"], "services/agent is no file or folder in services/scheduler/placement, "),
    ],
)
def test_bad_arguments_end_with_one_line(arguments: list[str], message: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
