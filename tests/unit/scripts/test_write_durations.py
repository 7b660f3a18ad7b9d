"""The order of files of tests, and the seconds that it comes from."""

from __future__ import annotations

from scripts.write_durations import seconds_by_file
from tests.support import file_order

THIS = "tests/unit/scripts/test_write_durations.py"
NEXT = "tests/unit/scripts/test_examples.py"


def test_seconds_of_a_file_are_those_of_its_tests_and_fixtures() -> None:
    lines = [
        f"12.50s call     {THIS}::test_a[x::y]",
        f"0.25s setup    {THIS}::test_a",
        f"30.00s teardown {NEXT}::test_b",
        f"7.00s call     the output of a test, {THIS}::test_a",
        "9.00s call     tests/unit/test_that_was_removed.py::test_c",
        "2.00s call     passed",
    ]
    assert seconds_by_file(lines) == {NEXT: 30.0, THIS: 12.8}


def test_the_longest_files_come_first_and_no_file_is_divided() -> None:
    seconds = {"long.py": 100.0, "one.py": 1.0, "other.py": 1.0}
    items = ["one.py::test_b", "other.py::test_a", "one.py::test_a", "new.py::test_a", "long.py::test_a[x::y]"]
    ordered = sorted(items, key=lambda item: file_order.place_of(item, seconds))
    assert ordered == [
        "long.py::test_a[x::y]",
        "new.py::test_a",
        "one.py::test_b",
        "one.py::test_a",
        "other.py::test_a",
    ]
