"""Reads the tables of experiments and trials, and changes all experiments that match a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Protocol

from gangline.domain.experiment import TextChange
from gangline.domain.state import ExperimentAction
from gangline.errors import ErrorKind, GanglineError, invalid
from services.common import keys
from services.gateway.audit.attempt import current_attempt
from services.gateway.mirror.caller import MAX_REQUEST_ID, Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import sight_of
from services.gateway.table.field import Family, Field
from services.gateway.table.filter import Predicate
from services.gateway.table.table import Result, TableName, TablePage, TableQuery, Tables, TableView
from services.gateway.usecase.experiment import Experiments
from services.gateway.usecase.project import Projects
from services.gateway.usecase.removal import Removals

DEFAULT_FIELDS = {
    TableName.EXPERIMENTS: (
        "id", "name", "owner", "state", "outcome", "startTime", "endTime", "numTrials", "progress", "best", "labels",
        "archived",
    ),
    TableName.TRIALS: ("id", "state", "outcome", "startTime", "endTime", "batches", "progress", "best", "latest"),
}  # fmt: skip
MAX_ROWS = 1000
MAX_FIELDS = 200
# Experiments that one call changes, and how many of these changes are at the leader at a time.
MAX_BULK = 500
BULK_AT_A_TIME = 8


class TableReads:
    def __init__(self, caller: Caller, mirror: Watched, tables: Tables) -> None:
        self._caller = caller
        self._mirror = mirror
        self._tables = tables

    async def read(
        self, query: TableQuery, fields: Sequence[str], offset: int, limit: int, snapshot: str = ""
    ) -> TablePage:
        """Returns a page. fields: none for the default ones. snapshot: of an earlier page, whose rows and order then
        stay as long as the gateway keeps them. Raises GanglineError `filter.*`, `table.*`."""
        names, query = tuple(fields) or DEFAULT_FIELDS[query.table], self._seen(query)
        result = await self._tables.query(query, snapshot, caller=self._caller.name)
        return await self._tables.read_page(query, result, names, offset, limit)

    def open(self, query: TableQuery, fields: Sequence[str]) -> tuple[TableView[Any], Predicate[Any]]:
        """Returns the table and the condition of the query, for a reader that looks at single rows. Raises
        GanglineError `filter.*`, `table.field`."""
        query = self._seen(query)
        view = self._tables.view(query)
        for name in fields:
            view.fields.find(name)
        return view, self._tables.compile(query, view)

    def list_fields(self, table: TableName) -> tuple[Sequence[Field[object]], Sequence[Family[object]]]:
        """Returns the fixed fields, and the families."""
        view = self._tables.view(TableQuery(table))
        return view.fields.fields, view.fields.families

    async def list_members(self, table: TableName, experiment_id: int = 0) -> list[str]:
        """Returns the fields of families that some row has."""
        query = self._seen(TableQuery(table, experiment_id=experiment_id))
        return await self._tables.list_members(query, caller=self._caller.name)

    def _seen(self, query: TableQuery) -> TableQuery:
        return replace(query, project_ids=sight_of(self._mirror.state, self._caller.principal).scope)


class BulkAction(StrEnum):
    KILL = "KILL"
    PAUSE = "PAUSE"
    ACTIVATE = "ACTIVATE"
    CANCEL = "CANCEL"
    ARCHIVE = "ARCHIVE"
    UNARCHIVE = "UNARCHIVE"
    DELETE = "DELETE"
    MOVE = "MOVE"
    LABEL = "LABEL"


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """One action on all experiments that match a filter, or on these ids."""

    action: BulkAction
    filter: str = ""
    ids: tuple[int, ...] | None = None
    after_id: int = 0  # only those with a greater id, for the next call of the same order
    most_expected: int | None = None  # the order is refused if more match; None for any number
    is_dry_run: bool = False
    project_id: int = 0  # destination of MOVE
    add_labels: tuple[str, ...] = ()
    remove_labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BulkItem:
    """What became of one experiment."""

    id: int
    error: GanglineError | None = None  # None if the action was carried out, or nothing was to be done


@dataclass(frozen=True, slots=True)
class BulkResult:
    num_matching: int  # experiments that match, in all
    num_owned: int  # experiments of these that belong to the caller
    items: tuple[BulkItem, ...]  # by id; empty for a dry run
    next_after_id: int | None  # after_id of the next call; None if this was the last one


# As the changes themselves are called in the audit log.
_AUDIT_ACTIONS = {action: f"experiment.{action.lower()}" for action in BulkAction} | {
    BulkAction.LABEL: "experiment.edit"
}


class ChangingCases(Protocol):
    """The use cases of one change."""

    @property
    def experiments(self) -> Experiments: ...

    @property
    def removals(self) -> Removals: ...

    @property
    def projects(self) -> Projects: ...


class Bulk:
    """Each experiment is changed by a change of its own, with all checks of that change. The caller's request id gives
    the id of each, so a call that is sent again changes nothing twice."""

    def __init__(
        self, caller: Caller, mirror: Watched, tables: Tables, cases_of: Callable[[str | None], ChangingCases]
    ) -> None:
        self._caller = caller
        self._mirror = mirror
        self._tables = tables
        self._cases_of = cases_of

    async def run(self, order: BulkOrder) -> BulkResult:
        """Raises GanglineError `bulk.*`, `filter.*`, `table.*`; what becomes of one experiment is in its item."""
        self._caller.check_request_id()
        _check(order)
        ids = await self._find(order)
        if order.most_expected is not None and len(ids) > order.most_expected:
            raise GanglineError(
                "bulk.more",
                f"{len(ids)} experiments match by now, and {order.most_expected} were expected; look at them again",
                ErrorKind.CONFLICT,
            )
        left = [id_ for id_ in ids if id_ > order.after_id]
        part = [] if order.is_dry_run else left[:MAX_BULK]
        places = asyncio.Semaphore(BULK_AT_A_TIME)

        async def change(experiment_id: int) -> BulkItem:
            async with places:
                return await self._change(experiment_id, order)

        attempt = current_attempt()
        if attempt is not None and not part:
            attempt.leaves_none = True
        items = await asyncio.gather(*map(change, part))
        is_cut = len(part) < len(left) and not order.is_dry_run
        return BulkResult(len(ids), sum(map(self._owns, ids)), tuple(items), part[-1] if is_cut else None)

    async def _find(self, order: BulkOrder) -> list[int]:
        if order.ids is not None:
            return sorted(set(order.ids))
        scope = sight_of(self._mirror.state, self._caller.principal).scope
        query = TableQuery(TableName.EXPERIMENTS, order.filter, project_ids=scope)
        result: Result = await self._tables.query(query, caller=self._caller.name)
        return sorted(int(id_) for id_ in result.ids)

    def _owns(self, experiment_id: int) -> bool:
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        return experiment is not None and experiment.owner == self._caller.name

    async def _change(self, experiment_id: int, order: BulkOrder) -> BulkItem:
        cases = self._cases_of(_id_of(self._caller.request_id, experiment_id))
        try:
            await _act(cases, experiment_id, order)
        except GanglineError as error:
            attempt = current_attempt()
            if attempt is not None:
                attempt.refuse(_AUDIT_ACTIONS[order.action], "experiment", str(experiment_id), error)
            return BulkItem(experiment_id, error)
        return BulkItem(experiment_id)


def _id_of(request_id: str | None, experiment_id: int) -> str | None:
    """Returns the request id of one experiment's change. A long id of the order is replaced by its digest."""
    if request_id is None:
        return None
    own = f"{request_id}-{experiment_id}"
    return own if len(own) <= MAX_REQUEST_ID else f"{sha256(request_id.encode()).hexdigest()}-{experiment_id}"


def _act(cases: ChangingCases, experiment_id: int, order: BulkOrder) -> Awaitable[object]:
    labels = TextChange(add_labels=order.add_labels, remove_labels=order.remove_labels)
    acts: dict[BulkAction, Callable[[], Awaitable[object]]] = {
        BulkAction.KILL: lambda: cases.experiments.kill(experiment_id),
        BulkAction.ARCHIVE: lambda: cases.removals.archive(experiment_id),
        BulkAction.UNARCHIVE: lambda: cases.removals.unarchive(experiment_id),
        BulkAction.DELETE: lambda: cases.removals.delete(experiment_id),
        BulkAction.MOVE: lambda: cases.projects.move_experiment(experiment_id, order.project_id),
        BulkAction.LABEL: lambda: cases.experiments.update(experiment_id, (labels,)),
    }
    if order.action in acts:
        return acts[order.action]()
    return cases.experiments.update(experiment_id, (ExperimentAction(order.action),))


def _check(order: BulkOrder) -> None:
    # A filter without conditions, which a program may send by mistake, would match everything.
    if (order.ids is None) == (not order.filter.strip()):
        raise invalid("bulk.which", "give either a filter or ids; the filter `id > 0` matches all experiments")
    if order.action is BulkAction.MOVE and not order.project_id:
        raise invalid("bulk.move", "MOVE needs the id of a project as projectId")
    if order.action is BulkAction.LABEL and not (order.add_labels or order.remove_labels):
        raise invalid("bulk.label", "LABEL needs addLabels or removeLabels")
