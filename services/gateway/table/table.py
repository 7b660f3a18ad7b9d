"""Answers queries of the two tables: which rows match, in which order, and a page of them.

The ids that match are kept for a while under a name, so further pages are slices of one list: they cost little, and no
row appears twice while rows change. Long work is done in steps, between which other requests are served.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from gangline.errors import invalid
from services.gateway.table.field import Family, Field, FieldList, Kind, Value
from services.gateway.table.filter import Predicate, parse_filter
from services.gateway.table.row import ExperimentRow, TrialRow
from services.gateway.table.row_index import RowIndex
from services.gateway.table.sorting import parse_sort, sort_rows
from services.gateway.table.table_field import experiment_fields, trial_fields

# Rows that are examined before other requests are served.
STEP_ROWS = 250
# Processor time after which a filter is given up.
MAX_SECONDS = 3.0
# Results that are kept, and their ids in all.
MAX_RESULTS = 64
MAX_KEPT_IDS = 1_000_000
# How long callers who name no snapshot share a result, while nothing changes.
SHARED_SECONDS = 60.0

Row = TypeVar("Row", ExperimentRow, TrialRow)


class TableName(StrEnum):
    EXPERIMENTS = "experiments"
    TRIALS = "trials"


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Selects and orders rows of one table."""

    table: TableName
    filter: str = ""
    sort: str = ""  # empty for the newest experiments first, and the trials of each in their order
    experiment_id: int = 0  # only the trials of this experiment; 0 for those of all


@dataclass(frozen=True, slots=True)
class Result:
    """The rows that matched at a revision."""

    snapshot: str  # name under which the gateway keeps it for a while
    revision: int  # revision of etcd that it shows
    ids: Sequence[int | str]  # in their order


@dataclass(frozen=True, slots=True)
class TablePage:
    """A part of a result with the values of some fields, as they are now."""

    result: Result
    offset: int
    rows: list[dict[str, Any]]  # a row that was deleted since is left out


@dataclass(frozen=True, slots=True)
class TableView(Generic[Row]):
    """The fields and rows of one table at this moment."""

    fields: FieldList[Row]
    rows: Callable[[], Iterator[Row]]
    find: Callable[[Any], Row | None]


class Tables:
    def __init__(self, index: RowIndex, revision: Callable[[], int], now: Callable[[], float] = time.time) -> None:
        self._index = index
        self._revision = revision
        self._now = now
        self._results: OrderedDict[str, Result] = OrderedDict()

    def view(self, table: TableName, experiment_id: int = 0) -> TableView[Any]:
        """Returns the table as it is now; it is read without awaiting."""
        homes, now = self._index.homes(), self._now()
        if table is TableName.EXPERIMENTS:
            return TableView(experiment_fields(homes, now), lambda: iter(self._index.experiments()), self._index.find)
        return TableView(trial_fields(homes, now), lambda: self._trials(experiment_id), self._find_trial)

    def compile(self, query: TableQuery, view: TableView[Any]) -> Predicate[Any]:
        """Returns the condition of a query. Raises GanglineError `filter.*`, `table.field`."""
        return parse_filter(query.filter, view.fields.find, self._now())

    async def query(self, query: TableQuery, snapshot: str = "") -> Result:
        """Returns the rows that match. snapshot: an earlier result, which is returned while it is kept. Raises
        GanglineError `filter.*`, `table.*`."""
        revision = self._revision()
        name = _name(query, revision, self._now())
        kept = self._results.get(snapshot) or self._results.get(name)
        if kept is not None:
            self._results.move_to_end(kept.snapshot)
            return kept
        view = self.view(query.table, query.experiment_id)
        sort = parse_sort(query.sort)
        for key in sort:
            view.fields.find(key.name)
        matching = await self._select(view, self.compile(query, view))
        ordered = sort_rows(matching, sort, view.fields.find) if sort else matching
        return self._keep(Result(name, revision, [row.id for row in ordered]))

    def read_page(self, query: TableQuery, result: Result, fields: Sequence[str], offset: int, limit: int) -> TablePage:
        """Returns a page of a result. Raises GanglineError `table.field`."""
        view = self.view(query.table, query.experiment_id)
        chosen = [view.fields.find(name) for name in fields]
        found = (view.find(id_) for id_ in result.ids[offset : offset + limit])
        return TablePage(result, offset, [values_of(row, chosen) for row in found if row is not None])

    async def list_members(self, table: TableName, experiment_id: int = 0) -> list[str]:
        """Returns the names of all fields of families that some row has a value for, sorted."""
        view = self.view(table, experiment_id)
        names: set[str] = set()
        async for row in _in_steps(view.rows()):
            for family in view.fields.families:
                names.update(_members(family, row))
        return sorted(names)

    async def _select(self, view: TableView[Any], matches: Predicate[Any]) -> list[Any]:
        return [row async for row in _in_steps(view.rows()) if matches(row)]

    def _trials(self, experiment_id: int) -> Iterator[TrialRow]:
        if experiment_id:
            home = self._index.find(experiment_id)
            yield from self._index.trials_of(home) if home is not None else ()
            return
        # A copy, because the rows are made anew between two steps.
        for home in tuple(self._index.experiments()):
            yield from self._index.trials_of(home)

    def _find_trial(self, trial_id: str) -> TrialRow | None:
        number = trial_id.partition(".")[0]
        home = self._index.find(int(number)) if number.isdecimal() else None
        return self._index.find_trial(home, trial_id) if home is not None else None

    def _keep(self, result: Result) -> Result:
        self._results[result.snapshot] = result
        num_ids = sum(len(each.ids) for each in self._results.values())
        while len(self._results) > 1 and (len(self._results) > MAX_RESULTS or num_ids > MAX_KEPT_IDS):
            num_ids -= len(self._results.popitem(last=False)[1].ids)
        return result


def values_of(row: Row, fields: Sequence[Field[Row]]) -> dict[str, Any]:
    """Returns the values of these fields by their names, as JSON has them."""
    return {field.name: _shown(field.kind, field.read(row)) for field in fields}


def _shown(kind: Kind, value: Value) -> Any:
    if kind is Kind.TIME and isinstance(value, float):
        return show_time(value)
    return value


def show_time(seconds: float) -> str | None:
    """Returns the time in the form of RFC 3339; None for a number that is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def _members(family: Family[Any], row: Any) -> Iterator[str]:
    for key in family.read(row):
        yield f"{family.prefix}{key}"


async def _in_steps(rows: Iterator[Row]) -> Any:
    """Yields the rows, and lets other tasks run between steps. Raises GanglineError `filter.slow`."""
    left, began = MAX_SECONDS, time.thread_time()
    for number, row in enumerate(rows, 1):
        yield row
        if number % STEP_ROWS == 0:
            left -= time.thread_time() - began
            if left < 0:
                raise invalid(
                    "filter.slow",
                    f"the filter took more than {MAX_SECONDS:g} s of processor time; use fewer conditions and patterns",
                )
            await asyncio.sleep(0)
            began = time.thread_time()


def _name(query: TableQuery, revision: int, now: float) -> str:
    # A filter may name ages, such as 7d, so a result is not shared for long.
    text = repr((query, revision, now // SHARED_SECONDS))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
