"""Plugin of pytest for `make mutants`: records which functions each test calls, and runs a selection of the tests.

Owns the record of a run: it separates the calls by test, keeps the seconds of each test, and notes the first test that
fails. Environment variables switch each part on. Loaded by the runs that scripts/mutation_tests.py starts.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.call_tracer import CALLS_VARIABLE, CURRENT, TRACER, Tracer

SELECTED_VARIABLE = "MUTANTS_SELECTED_FILE"
"""A JSON list of the tests to run, in their order; without it all tests run."""
FAILED_VARIABLE = "MUTANTS_FAILED_FILE"
"""The file that takes the name of the first failing test."""
TESTS_FILE = "tests.json"


class CallRecord:
    """Records the calls of each test.

    Calls in a test's setup count for all tests of its file, as fixtures are shared.
    """

    def __init__(self, folder: Path, tracer: Tracer) -> None:
        self._folder, self._tracer = folder, tracer
        self._numbers = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._files: defaultdict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._turn_to(item.nodeid.split("::")[0])
        yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._turn_to(item.nodeid)
        yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        kept = {"seconds": self._seconds, "files": self._files}
        (self._folder / TESTS_FILE).write_text(json.dumps(kept))

    def _turn_to(self, name: str) -> None:
        self._numbers += 1
        file = f"{self._numbers}.calls"
        self._files[name].append(file)
        link = self._folder / "next"
        link.symlink_to(file)
        link.replace(self._folder / CURRENT)
        self._tracer.forget()


class Selection:
    def __init__(self, names: list[str]) -> None:
        self._place_by_name = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._place_by_name]
        items.sort(key=lambda item: self._place_by_name[item.nodeid])


class FirstFailure:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self._file.exists():
            self._file.write_text(report.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if TRACER is not None:
        config.pluginmanager.register(CallRecord(Path(os.environ[CALLS_VARIABLE]), TRACER))
    if selected := os.environ.get(SELECTED_VARIABLE):
        config.pluginmanager.register(Selection(json.loads(Path(selected).read_text())))
    if failed := os.environ.get(FAILED_VARIABLE):
        config.pluginmanager.register(FirstFailure(Path(failed)))
