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
from services.common.concurrency import Turns
from services.gateway.table.field import Family, Field, FieldList, Kind, Value
from services.gateway.table.filter import Predicate, parse_filter
from services.gateway.table.row import ExperimentRow, TrialRow
from services.gateway.table.row_index import PartOfRows, RowIndex
from services.gateway.table.sorting import SortKey, parse_sort, sort_fields, sort_places
from services.gateway.table.table_field import experiment_fields, trial_fields

# Time after which other requests are served. A step ends with a row.
STEP_SECONDS = 0.005
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
    project_ids: tuple[int, ...] | None = None  # only rows of experiments in these projects; None for all


@dataclass(frozen=True, slots=True)
class Result:
    """The rows that matched at a revision."""

    query: TableQuery
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
    ids_of: Callable[[int], Sequence[int | str]]  # the ids of the rows of one experiment


class Tables:
    def __init__(self, index: RowIndex, revision: Callable[[], int], now: Callable[[], float] = time.time) -> None:
        self._index = index
        self._revision = revision
        self._now = now
        self._results: OrderedDict[str, Result] = OrderedDict()
        # One query of a caller is worked on at a time, so many of them do not slow down all other requests.
        self._turns = Turns()

    def view(self, query: TableQuery) -> TableView[Any]:
        """Returns the rows from which the query selects, as they are now; they are read without awaiting."""
        homes, now = self._index.homes(), self._now()
        rows = self._part(query)
        if query.table is TableName.EXPERIMENTS:
            fields = experiment_fields(homes, now)
            return TableView(fields, lambda: iter(rows.experiments()), rows.find, lambda id_: (id_,))
        fields_of_trials = trial_fields(homes, now)
        return TableView(
            fields_of_trials,
            lambda: _trials(rows, query.experiment_id),
            lambda id_: _find_trial(rows, id_),
            lambda id_: [row.id for row in _trials(rows, id_)],
        )

    def _part(self, query: TableQuery) -> RowIndex | PartOfRows:
        return self._index if query.project_ids is None else PartOfRows(self._index, frozenset(query.project_ids))

    def compile(self, query: TableQuery, view: TableView[Any]) -> Predicate[Any]:
        """Returns the condition of a query. Raises GanglineError `filter.*`, `table.field`."""
        return parse_filter(query.filter, view.fields.find, self._now())

    async def query(self, query: TableQuery, snapshot: str = "", *, caller: str = "") -> Result:
        """Returns the rows that match. snapshot: an earlier result of this query, which is returned while it is kept.
        caller: whose turn it is. Raises GanglineError `filter.*`, `table.*`."""
        async with self._turns.of(caller):
            revision = self._revision()
            name = _name(query, revision, self._now())
            kept = self._results.get(snapshot)
            if kept is None or kept.query != query:
                kept = self._results.get(name)
            if kept is not None:
                self._results.move_to_end(kept.snapshot)
                return kept
            view = self.view(query)
            keys = parse_sort(query.sort)
            fields = sort_fields(keys, view.fields.find)
            matching = await self._select(view, self.compile(query, view))
            ordered = await _sort(matching, keys, fields) if keys else matching
            return self._keep(Result(query, name, revision, [row.id for row in ordered]))

    async def read_page(
        self, query: TableQuery, result: Result, fields: Sequence[str], offset: int, limit: int
    ) -> TablePage:
        """Returns a page of a result. Raises GanglineError `table.field`."""
        view = self.view(query)
        chosen = [view.fields.find(name) for name in fields]
        found = (row for id_ in result.ids[offset : offset + limit] if (row := view.find(id_)) is not None)
        return TablePage(result, offset, [values_of(row, chosen) async for row in _in_steps(found)])

    async def list_members(self, query: TableQuery, *, caller: str = "") -> list[str]:
        """Returns the names of all fields of families that some row has a value for, sorted. caller: as in `query`."""
        async with self._turns.of(caller):
            view = self.view(query)
            names: set[str] = set()
            async for row in _in_steps(view.rows()):
                for family in view.fields.families:
                    names.update(_members(family, row))
            return sorted(names)

    async def _select(self, view: TableView[Any], matches: Predicate[Any]) -> list[Any]:
        return [row async for row in _in_steps(view.rows()) if matches(row)]

    def _keep(self, result: Result) -> Result:
        self._results[result.snapshot] = result
        num_ids = sum(len(each.ids) for each in self._results.values())
        while len(self._results) > 1 and (len(self._results) > MAX_RESULTS or num_ids > MAX_KEPT_IDS):
            num_ids -= len(self._results.popitem(last=False)[1].ids)
        return result


def _trials(rows: RowIndex | PartOfRows, experiment_id: int) -> Iterator[TrialRow]:
    if experiment_id:
        home = rows.find(experiment_id)
        yield from rows.trials_of(home) if home is not None else ()
        return
    # A copy, because the rows are made anew between two steps.
    for home in tuple(rows.experiments()):
        yield from rows.trials_of(home)


def _find_trial(rows: RowIndex | PartOfRows, trial_id: str) -> TrialRow | None:
    number = trial_id.partition(".")[0]
    home = rows.find(int(number)) if number.isdecimal() else None
    return rows.find_trial(home, trial_id) if home is not None else None


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


async def _sort(rows: Sequence[Row], keys: Sequence[SortKey], fields: Sequence[Field[Row]]) -> list[Row]:
    """Returns the rows in this order; equal ones keep theirs. The first read of a field may parse a row's texts."""
    places: Sequence[int] = range(len(rows))
    for key, field in zip(reversed(keys), reversed(fields), strict=True):
        values = [field.read(row) async for row in _in_steps(iter(rows))]
        places = sort_places(places, values, is_descending=key.is_descending)
    return [rows[place] for place in places]


async def _in_steps(rows: Iterator[Row]) -> Any:
    """Yields the rows, and lets other tasks run between steps. Raises GanglineError `filter.slow`."""
    left, began, step_began = MAX_SECONDS, time.thread_time(), time.perf_counter()
    for row in rows:
        yield row
        # The clock of the thread's processor time takes ten times as long to read.
        if time.perf_counter() - step_began > STEP_SECONDS:
            left -= time.thread_time() - began
            if left < 0:
                raise invalid(
                    "filter.slow",
                    f"the filter took more than {MAX_SECONDS:g} s of processor time; use fewer conditions and patterns",
                )
            await asyncio.sleep(0)
            began, step_began = time.thread_time(), time.perf_counter()


def _name(query: TableQuery, revision: int, now: float) -> str:
    # A filter may name ages, such as 7d, so a result is not shared for long.
    text = repr((query, revision, now // SHARED_SECONDS))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
