"""The parts of the cluster that one stream follows, as its query parameters name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Query

from gangline.errors import invalid
from services.gateway.http.live.cursor import Cursor, parse_cursor
from services.gateway.http.model import INT64_MAX
from services.gateway.table.sorting import parse_fields
from services.gateway.table.table import TableName, TableQuery
from services.gateway.usecase.table import DEFAULT_FIELDS, MAX_FIELDS

# Trials whose reports one stream follows.
MAX_TRIALS = 100


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table of a stream."""

    query: TableQuery
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Selects what the stream sends; without any of it, it sends heartbeats alone."""

    experiments: Annotated[bool, Query(description="Changed rows of the table of experiments")] = False
    experiment_filter: Annotated[str, Query(alias="experimentFilter", description="Only rows that match")] = ""
    experiment_fields: Annotated[str, Query(alias="experimentFields", description="As `fields` of the table")] = ""
    trials: Annotated[bool, Query(description="Changed rows of the table of trials")] = False
    trial_filter: Annotated[str, Query(alias="trialFilter", description="Only rows that match")] = ""
    trial_fields: Annotated[str, Query(alias="trialFields", description="As `fields` of the table")] = ""
    experiment_id: Annotated[
        int, Query(alias="experimentId", ge=0, le=INT64_MAX, description="Only trials of this experiment")
    ] = 0
    agents: Annotated[bool, Query(description="Changed agents, with who holds their slots")] = False
    models: Annotated[bool, Query(description="Changed models, also those whose versions changed")] = False
    queue: Annotated[bool, Query(description="Changed jobs, with their places and reasons")] = False
    metrics: Annotated[tuple[str, ...], Query(description="Ids of trials whose new reports are sent")] = ()
    from_cursor: Annotated[
        str, Query(alias="cursor", max_length=120, description="`cursor` of a page that was read before; now if absent")
    ] = ""
    resume: Annotated[str, Header(alias="Last-Event-ID", max_length=120)] = ""

    def cursor(self) -> Cursor | None:
        """Returns where the stream begins; None for now. Raises GanglineError `stream.cursor`."""
        text = self.resume or self.from_cursor
        return parse_cursor(text) if text else None

    def tables(self) -> tuple[TablePart, ...]:
        """Raises GanglineError `table.fields`, `stream.trials`."""
        if len(self.metrics) > MAX_TRIALS:
            raise invalid("stream.trials", f"metrics names {len(self.metrics)} trials, at most {MAX_TRIALS} are sent")
        parts: list[TablePart] = []
        if self.experiments:
            query = TableQuery(TableName.EXPERIMENTS, self.experiment_filter)
            parts.append(TablePart(query, _fields(TableName.EXPERIMENTS, self.experiment_fields)))
        if self.trials:
            query = TableQuery(TableName.TRIALS, self.trial_filter, experiment_id=self.experiment_id)
            parts.append(TablePart(query, _fields(TableName.TRIALS, self.trial_fields)))
        return tuple(parts)


def _fields(table: TableName, text: str) -> tuple[str, ...]:
    names = parse_fields(text, MAX_FIELDS) or DEFAULT_FIELDS[table]
    return ("id", *(name for name in names if name != "id"))
