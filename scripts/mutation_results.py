"""The results file of `make mutants`: what the tests call and what became of each defect, so that a run goes on.

Owns when a result still counts. The calls of a test file count while it and all files that are no tests are unchanged.
A noticed defect counts while its file and the file of the test that noticed it are unchanged. A survivor counts until
any Python file changes, as any change may make a test notice it. Called by scripts/mutants.py.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.mutation import Mutation
from scripts.mutation_tests import MeasuredTest

NOTICED, SURVIVED, TIMED_OUT = "noticed", "survived", "timed out"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one defect."""

    kind: str
    test: str = ""  # test that noticed the defect; empty if none did


class Results:
    """tree: a copy of the tree without a defect, read once. Each result is written to the file at once."""

    def __init__(self, file: Path, tree: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._kept: dict[str, dict[str, Any]] = {"calls": {}, "outcomes": {}}
        if file.exists():
            self._kept = json.loads(file.read_text())
        paths = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.py"))
        texts = self._texts = {path: (tree / path).read_text() for path in paths}
        self._all = _digest(*(part for item in texts.items() for part in item))
        tests = {path for path in texts if path.startswith("tests/") and Path(path).name.startswith("test_")}
        self._shared = _digest(*(part for path, text in texts.items() if path not in tests for part in (path, text)))

    def calls_of(self, test_file: str) -> list[MeasuredTest] | None:
        """None when it has to be measured."""
        kept = self._kept["calls"].get(test_file)
        if kept is None or kept["key"] != self._key_of_calls(test_file):
            return None
        functions = kept["functions"]
        return [
            MeasuredTest(name, seconds, frozenset(functions[number] for number in calls))
            for name, seconds, calls in kept["tests"]
        ]

    def keep_calls(self, test_files: Sequence[str], measured: Sequence[MeasuredTest]) -> None:
        for file in test_files:
            tests = [test for test in measured if test.file == file]
            functions = sorted(frozenset().union(*(test.calls for test in tests)))
            numbers = {function: number for number, function in enumerate(functions)}
            self._kept["calls"][file] = {
                "key": self._key_of_calls(file),
                "functions": functions,
                "tests": [
                    [test.name, test.seconds, sorted(numbers[function] for function in test.calls)] for test in tests
                ],
            }
        self._write()

    def outcome_of(self, path: str, mutation: Mutation) -> Outcome | None:
        """None when it has to be tried."""
        kept = self._kept["outcomes"].get(self._name(path, mutation))
        if kept is None:
            return None
        outcome = Outcome(kept["kind"], kept["test"])
        return outcome if kept["key"] == self._key_of_outcome(outcome) else None

    def keep_outcome(self, path: str, mutation: Mutation, outcome: Outcome) -> None:
        kept: Mapping[str, str] = {
            "kind": outcome.kind,
            "test": outcome.test,
            "key": self._key_of_outcome(outcome),
            "place": f"{path}:{mutation.line}",
        }
        with self._lock:
            self._kept["outcomes"][self._name(path, mutation)] = kept
            self._write()

    def _key_of_calls(self, test_file: str) -> str:
        return _digest(self._shared, self._texts[test_file])

    def _key_of_outcome(self, outcome: Outcome) -> str:
        """The text of the changed file is part of the outcome's name already."""
        if outcome.kind != NOTICED:
            return self._all
        return _digest(self._texts.get(outcome.test.split("::")[0], ""))

    def _name(self, path: str, mutation: Mutation) -> str:
        return _digest(path, self._texts[path], str(mutation.start), str(mutation.end), mutation.text)

    def _write(self) -> None:
        written = self._file.with_name(f"{self._file.name}.new")
        written.write_text(json.dumps(self._kept))
        written.replace(self._file)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
