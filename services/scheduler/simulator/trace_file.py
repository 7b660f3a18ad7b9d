"""PURE: the CSV file of a trace, read and written.

Owns its columns. Every mistake is refused with one line that names the line, the column, and what is expected there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from math import inf
from typing import TypeVar

from gangline.errors import GanglineError, invalid
from services.scheduler.placement.request.snapshot import DEFAULT_PRIORITY
from services.scheduler.simulator.submission import OUTCOMES, TraceSubmission

NEEDED = ("submitted_at", "slots", "duration_seconds")
OPTIONAL = ("priority", "group", "id", "planned_seconds", "preemptible", "single_agent", "outcome")
N = TypeVar("N", int, float)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def parse_trace(text: str) -> list[TraceSubmission]:
    """Returns the submissions in the order of submission. An empty field means the column's default. Raises
    GanglineError `trace.syntax` or `trace.invalid`."""
    reader = csv.reader(io.StringIO(text), strict=True)
    columns: list[str] = []
    submissions: list[TraceSubmission] = []
    line_by_id: dict[str, int] = {}
    try:
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if not columns:
                columns = _header(fields, reader.line_num)
                continue
            row = _Row(columns, fields, reader.line_num)
            submission = _submission(row, f"t{len(submissions) + 1}")
            if submission.id in line_by_id:
                raise row.error("id", f"{submission.id!r} is on line {line_by_id[submission.id]} already")
            line_by_id[submission.id] = reader.line_num
            submissions.append(submission)
    except csv.Error as error:
        raise invalid("trace.syntax", f"line {reader.line_num}: {error}") from error
    if not columns:
        raise invalid("trace.syntax", f"line 1: must name the columns {', '.join(NEEDED)}; the file is empty")
    if not submissions:
        raise invalid("trace.syntax", f"line {reader.line_num}: the file has columns, but no row below them")
    return sorted(submissions, key=lambda submission: submission.submitted_at)


def dump_trace(submissions: Iterable[TraceSubmission]) -> str:
    """Returns the trace as CSV; reading it back gives the same submissions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*NEEDED, *OPTIONAL])
    for submission in submissions:
        numbers = (repr(submission.submitted_at), submission.slots, repr(submission.duration_seconds))
        flags = (str(submission.is_preemptible).lower(), str(submission.is_single_agent).lower())
        writer.writerow(
            [
                *numbers,
                submission.priority,
                submission.group,
                submission.id,
                repr(submission.planned_seconds),
                *flags,
                submission.outcome,
            ]
        )
    return out.getvalue()


class _Row:
    """Holds one line, its fields by column."""

    def __init__(self, columns: Sequence[str], fields: Sequence[str], line: int) -> None:
        self._columns = columns
        self._line = line
        if len(fields) != len(columns):
            where = f"line {line}, column {min(len(fields), len(columns)) + 1}"
            raise invalid("trace.syntax", f"{where}: there are {len(fields)} fields, but {len(columns)} columns")
        self._fields = dict(zip(columns, (field.strip() for field in fields), strict=True))

    def error(self, name: str, text: str) -> GanglineError:
        where = f", column {self._columns.index(name) + 1} ({name})" if name in self._columns else ""
        return invalid("trace.invalid", f"line {self._line}{where}: {text}")

    def text(self, name: str, default: str) -> str:
        return self._fields.get(name) or default

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise self.error(name, f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int | None = None) -> int:
        bounds = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        return self._number(
            name, default, int, bounds, lambda number: low <= number and (high is None or number <= high)
        )

    def seconds(self, name: str, default: float | None, *, low: float = 0.0, is_above: bool = False) -> float:
        """Reads seconds that are at least `low`, or above it."""
        bounds = f"seconds, {'more than' if is_above else 'at least'} {low:g}"
        is_within = (lambda number: low < number < inf) if is_above else (lambda number: low <= number < inf)
        return self._number(name, default, float, bounds, is_within)

    def _number(
        self, name: str, default: N | None, parse: Callable[[str], N], bounds: str, is_within: Callable[[N], bool]
    ) -> N:
        value = self._fields.get(name, "")
        if not value and default is not None:
            return default
        try:
            number = parse(value)
        except ValueError:
            raise self.error(name, f"must be {bounds}, not {value!r}") from None
        if not is_within(number):
            raise self.error(name, f"must be {bounds}, not {value}")
        return number


def _header(fields: Sequence[str], line: int) -> list[str]:
    columns = [field.strip().removeprefix("\ufeff") for field in fields]
    column_names = (*NEEDED, *OPTIONAL)
    for number, name in enumerate(columns, 1):
        where = f"line {line}, column {number}"
        if name not in column_names:
            near = get_close_matches(name, column_names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(column_names)}"
            raise invalid("trace.syntax", f"{where}: {name!r} is no column of a trace; {hint}")
        if name in columns[: number - 1]:
            raise invalid("trace.syntax", f"{where}: {name!r} is there twice")
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise invalid(
            "trace.syntax", f"line {line}: the column {missing[0]} is missing; needed are {', '.join(NEEDED)}"
        )
    return columns


def _submission(row: _Row, default_id: str) -> TraceSubmission:
    """Reads a submission. Without a group it forms a group by itself."""
    submission_id = row.text("id", default_id)
    duration = row.seconds("duration_seconds", None, is_above=True)
    return TraceSubmission(
        id=submission_id,
        submitted_at=row.seconds("submitted_at", None),
        slots=row.integer("slots", None, 1),
        duration_seconds=duration,
        planned_seconds=row.seconds("planned_seconds", duration, low=duration),
        priority=row.integer("priority", DEFAULT_PRIORITY, 1, 99),
        group=row.text("group", submission_id),
        is_preemptible=_FLAGS[row.choice("preemptible", tuple(_FLAGS), "true")],
        is_single_agent=_FLAGS[row.choice("single_agent", tuple(_FLAGS), "false")],
        outcome=row.choice("outcome", OUTCOMES, "completed"),
    )
