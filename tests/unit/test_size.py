"""Holds the repository to its sizes: files and functions stay small enough to be read at one go.

There is no list of exceptions. A file or function that fails here is to be divided along what it does.
"""

from __future__ import annotations

import math

from tests.support.source import SourceFile, list_functions, list_source_files

MAX_LINES_OF_FILE = 500
MAX_LINES_OF_TEST_FILE = 800
MAX_MEDIAN_LINES_OF_FILE = 180
MAX_LINES_OF_FUNCTION = 80
MAX_P95_LINES_OF_FUNCTION = 40
MAX_MEDIAN_LINES_OF_FUNCTION = 10


def test_no_file_is_too_long() -> None:
    too_long = [
        f"{file.path}: {file.num_lines} lines"
        for file in list_source_files()
        if file.num_lines > (MAX_LINES_OF_TEST_FILE if file.is_test else MAX_LINES_OF_FILE)
    ]
    assert too_long == []


def test_median_file_is_short() -> None:
    lines = [file.num_lines for file in list_source_files() if file.num_lines > 3]
    assert _nearest_rank(lines, 0.5) < MAX_MEDIAN_LINES_OF_FILE


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{where}: {lines} lines"
        for file in list_source_files()
        for where, lines in _function_lengths(file)
        if lines > MAX_LINES_OF_FUNCTION
    ]
    assert too_long == []


def test_most_functions_are_short() -> None:
    lengths = sorted(lines for file in list_source_files() if not file.is_test for _, lines in _function_lengths(file))
    assert _nearest_rank(lengths, 0.95) < MAX_P95_LINES_OF_FUNCTION
    assert _nearest_rank(lengths, 0.5) < MAX_MEDIAN_LINES_OF_FUNCTION


def test_every_file_says_what_it_is() -> None:
    silent = [file.path for file in list_source_files() if file.num_lines and not file.docstring]
    assert silent == []


def _function_lengths(file: SourceFile) -> list[tuple[str, int]]:
    return [(f"{file.path}:{function.line} {function.name}", function.num_lines) for function in list_functions(file)]


def _nearest_rank(values: list[int], quantile: float) -> int:
    ordered = sorted(values)
    return ordered[math.ceil(quantile * len(ordered)) - 1]
