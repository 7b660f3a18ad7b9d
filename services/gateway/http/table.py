"""Routes of tables: pages of experiments and of trials with chosen fields, and actions on all that match a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import Field
from pydantic_core import to_json

from services.gateway.http import model
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.page import Offset
from services.gateway.http.route import ERRORS, Route
from services.gateway.table import field
from services.gateway.table.sorting import parse_fields
from services.gateway.table.table import TableName, TableQuery
from services.gateway.usecase.table import MAX_FIELDS, MAX_ROWS, BulkAction, BulkOrder

router = APIRouter(prefix="/api/v1", tags=["tables"], route_class=Route, responses=ERRORS)

FILTER = "Conditions on the rows, such as: state = RUNNING and (hp.lr < 0.1 or labels = best)"


@dataclass(frozen=True, slots=True)
class RowQuery:
    """Selects and orders rows, and a page of them."""

    filter: Annotated[str, Query(description=FILTER)] = ""
    sort: Annotated[str, Query(description="Fields, the first decides; a minus in front puts the greatest first")] = ""
    fields: Annotated[str, Query(description="Fields of each row, separated by commas; the usual ones if absent")] = ""
    offset: Offset = 0
    limit: Annotated[int, Query(ge=0, le=MAX_ROWS, description="Most rows of the answer")] = 100
    snapshot: Annotated[
        str, Query(max_length=64, description="That of an earlier page, to read on in the same rows and order")
    ] = ""
    experiment_id: Annotated[
        int, Query(alias="experimentId", ge=0, le=model.INT64_MAX, description="Only trials of this experiment")
    ] = 0


class RowPage(Answer):
    """Holds one page of a table."""

    # each row has the fields that were asked for, by their names, and always its id
    rows: list[dict[str, Any]]
    total: int  # number of rows that match
    offset: int
    # name of these rows in this order; another one than that of the request if the gateway no longer keeps that
    snapshot: str
    cursor: str  # place in the stream of changes at which these rows were read


class TableField(Answer):
    """Describes a field of a table."""

    name: str
    kind: field.Kind
    meaning: str
    choices: list[str]  # all values that it can have; empty where they are not known


class TableFields(Answer):
    """Lists fields: first those that every row has, then those that some rows have, by their names."""

    fields: list[TableField]
    total: int


@router.get("/tables/{table}", response_model=RowPage)
async def read_table(table: TableName, cases: Cases, wanted: Annotated[RowQuery, Depends()]) -> Response:
    """Returns a page of experiments or trials. The newest experiments come first, and the trials of each in their
    order. docs/http.md has the grammar of `filter`."""
    query = TableQuery(table, wanted.filter, wanted.sort, wanted.experiment_id)
    names = parse_fields(wanted.fields, MAX_FIELDS)
    page = await cases.tables.read(
        query, ("id", *(name for name in names if name != "id")) if names else (), wanted.offset, wanted.limit,
        wanted.snapshot,
    )  # fmt: skip
    document = {
        "rows": page.rows,
        "total": len(page.result.ids),
        "offset": page.offset,
        "snapshot": page.result.snapshot,
        "cursor": str(page.result.revision),
    }
    return Response(to_json(document, inf_nan_mode="null"), media_type="application/json")


@router.get("/tables/{table}/fields")
async def list_table_fields(
    table: TableName,
    cases: Cases,
    *,
    search: Annotated[str, Query(max_length=200, description="Only names that contain this, whatever the case")] = "",
    experiment_id: Annotated[int, Query(alias="experimentId", ge=0, le=model.INT64_MAX)] = 0,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=0, le=MAX_ROWS)] = 100,
) -> TableFields:
    """Lists the fields that `filter`, `sort` and `fields` may name, with the hyperparameters and the validation metrics
    of the rows."""
    fixed, families = cases.tables.list_fields(table)
    meaning_by_prefix = {family.prefix: family.meaning for family in families}
    listed = [
        TableField(name=each.name, kind=each.kind, meaning=each.meaning, choices=list(each.choices)) for each in fixed
    ]
    for name in await cases.tables.list_members(table, experiment_id):
        meaning = meaning_by_prefix[f"{name.partition('.')[0]}."]
        listed.append(TableField(name=name, kind=field.Kind.ANY, meaning=meaning, choices=[]))
    wanted = [each for each in listed if search.casefold() in each.name.casefold()]
    return TableFields(fields=wanted[offset : offset + limit], total=len(wanted))


class BulkBody(
    model.Body, example={"action": "ARCHIVE", "filter": "state = TERMINAL and startTime < 30d", "dryRun": True}
):
    """Orders one action on all experiments that match a filter, or on those with these ids."""

    action: Annotated[BulkAction, Field(strict=False)]
    filter: str = ""  # the grammar of tables; `id > 0` matches all
    ids: list[model.Int64] | None = Field(default=None, max_length=10_000)
    dry_run: bool = False  # only counts, and changes nothing
    expected: int | None = None  # the order is refused if more experiments match
    after_id: model.Int64 = 0  # nextAfterId of the answer before, to go on with the same order
    project_id: model.Int64 = 0  # destination of MOVE
    add_labels: list[str] = Field(default_factory=list)  # of LABEL
    remove_labels: list[str] = Field(default_factory=list)  # of LABEL


class BulkItem(Answer):
    """States what became of one experiment."""

    id: int
    code: str | None = None  # stable code of the error; null if there was none
    detail: str | None = None  # the error in one line
    effect: str | None = None  # none, or unknown if the change may have been made


class BulkAnswer(Answer):
    """Reports an action on many experiments."""

    num_matching: int  # experiments that match, in all
    num_owned: int  # experiments of these that belong to the caller
    num_changed: int  # experiments of this answer without an error
    results: list[BulkItem]  # by id; empty for a dry run
    next_after_id: int | None  # afterId of the next call of the order; null if all experiments had their turn


@router.post("/bulk/experiments", tags=["experiments"])
async def change_experiments(body: BulkBody, cases: KeyedCases) -> BulkAnswer:
    """Kills, pauses, activates, cancels, archives, unarchives, deletes, moves or labels experiments, up to 500 in one
    call. Each is changed with the checks of the action on a single one; an error of one does not stop the others."""
    order = BulkOrder(
        action=body.action,
        filter=body.filter,
        ids=None if body.ids is None else tuple(body.ids),
        after_id=body.after_id,
        most_expected=body.expected,
        is_dry_run=body.dry_run,
        project_id=body.project_id,
        add_labels=tuple(body.add_labels),
        remove_labels=tuple(body.remove_labels),
    )
    done = await cases.bulk.run(order)
    results = [
        BulkItem(id=item.id)
        if item.error is None
        else BulkItem(id=item.id, code=item.error.code, detail=item.error.message, effect=item.error.effect)
        for item in done.items
    ]
    return BulkAnswer(
        num_matching=done.num_matching,
        num_owned=done.num_owned,
        num_changed=sum(item.error is None for item in done.items),
        results=results,
        next_after_id=done.next_after_id,
    )
