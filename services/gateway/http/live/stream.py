"""The stream of one client: what changed after its cursor, as deltas.

A client costs no memory but its cursor: changes are read from the mirror's log when the client has taken the event
before. So a slow client gets fewer and larger events, and one that is too far behind gets `reset`. Rows in JSON are
made once for all clients (`shared_text.py`), and so are whole events for clients that follow the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json
from sse_starlette import ServerSentEvent

from gangline.errors import GanglineError, unavailable
from services.gateway.http import model
from services.gateway.http.agent import SlotHolder
from services.gateway.http.live.cursor import Cursor
from services.gateway.http.live.metrics_feed import MetricsFeed
from services.gateway.http.live.queue_feed import OtherScopeError, QueueFeed
from services.gateway.http.live.shared_text import SharedTexts
from services.gateway.http.live.subscription import Subscription, TablePart
from services.gateway.http.registry import ModelRow
from services.gateway.mirror.change_log import Topic
from services.gateway.table.table import TableName, TableView, values_of
from services.gateway.usecase.bundle import UserCases

# A client gets at most five events a second.
MIN_INTERVAL_SECONDS = 0.2
# Without being woken, a stream reads the queue, and reports that other gateways stored, this often.
LOOK_AGAIN_SECONDS = 1.0
IDLE_SECONDS = 30.0
# Rows of one event, and their values. A client that missed more reads its pages anew, which costs less: an event is
# written without letting other requests in.
MAX_ROWS = 1000
MAX_VALUES = 20_000
# Streams of one user, and of all.
MAX_OF_USER = 100
MAX_STREAMS = 1000
# Readings of the queue that are kept, one for each `Sight.key`.
MAX_QUEUES = 64
# A client that comes from another gateway may have seen more of etcd than this one, which waits so long to see it too.
CATCH_UP_SECONDS = 5.0

_TOPICS = {TableName.EXPERIMENTS: Topic.EXPERIMENT, TableName.TRIALS: Topic.TRIAL}


@dataclass
class LiveHub:
    """Holds what all streams of a gateway share, and bounds their number."""

    texts: SharedTexts = field(default_factory=SharedTexts)
    # By what the streams' callers see (`Sight.key`).
    queues: OrderedDict[Hashable, QueueFeed] = field(default_factory=OrderedDict)
    metrics: MetricsFeed = field(default_factory=MetricsFeed)
    num_by_user: Counter[str] = field(default_factory=Counter)

    def queue_of(self, scope: Hashable) -> QueueFeed:
        feed = self.queues.setdefault(scope, QueueFeed(scope))
        self.queues.move_to_end(scope)
        while len(self.queues) > MAX_QUEUES:
            self.queues.popitem(last=False)
        return feed

    def check(self, user: str) -> None:
        """Raises GanglineError `stream.too_many`."""
        if self.num_by_user[user] >= MAX_OF_USER:
            raise unavailable(
                "stream.too_many", f"{user} has {MAX_OF_USER} streams at this gateway, and no user has more; close some"
            )
        if self.num_by_user.total() >= MAX_STREAMS:
            raise unavailable(
                "stream.too_many", f"this gateway serves {MAX_STREAMS} streams, and no more; try another, or later"
            )

    @contextmanager
    def enter(self, user: str) -> Iterator[None]:
        """Counts a stream of this user while the block lasts. Raises as `check` does."""
        self.check(user)
        self.num_by_user[user] += 1
        try:
            yield
        finally:
            self.num_by_user[user] -= 1
            if not self.num_by_user[user]:
                del self.num_by_user[user]


@dataclass(frozen=True, slots=True)
class _OpenTable:
    part: TablePart
    view: TableView[Any]
    matches: Callable[[Any], bool]

    @property
    def key(self) -> tuple[object, ...]:
        """Names what the table's part of an event depends on, beside the revisions."""
        return self.part.query, self.part.fields

    def revision_by_id(self, changed: list[tuple[tuple[Topic, int | str], int]]) -> dict[int | str, int]:
        """Returns the rows that changed, each with the revision of its last change, the newest first."""
        query = self.part.query
        prefix = f"{query.experiment_id}." if query.experiment_id else ""
        revision_by_id: dict[int | str, int] = {}
        for (topic, id_), revision in changed:
            is_own = topic is _TOPICS[query.table]
            ids: Sequence[int | str] = (id_,) if is_own else ()
            if topic is Topic.TRIALS and query.table is TableName.TRIALS:
                ids = self.view.ids_of(int(id_))
            for each in ids:
                if str(each).startswith(prefix):
                    revision_by_id.setdefault(each, revision)
        return revision_by_id


class Stream:
    def __init__(self, hub: LiveHub, cases: UserCases, wanted: Subscription) -> None:
        """Raises GanglineError for a subscription that is refused."""
        self._hub = hub
        self._cases = cases
        self._changes = cases.changes
        self._wanted = wanted
        self._parts = wanted.tables()
        self._trial_ids = tuple(sorted(set(wanted.metrics)))
        self._start = wanted.cursor()
        self._scope = cases.sight().key
        self._tables = self._open()
        # Why a part could not be read when it was looked at last; None if all could.
        self._problem: GanglineError | None = None

    def _open(self) -> list[_OpenTable]:
        return [_OpenTable(part, *self._cases.tables.open(part.query, part.fields)) for part in self._parts]

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Yields `changes`, `reset` and `problem`, until the client goes or the gateway stops. The first event is
        `open`."""
        shown_problem: GanglineError | None = None
        with self._changes.listen(self._trial_ids) as changed:
            cursor = await self._first_cursor()
            yield ServerSentEvent("{}", event="open", id=str(cursor))
            if await self._is_ahead(cursor):
                cursor = await self._with_newest_report(Cursor(self._changes.revision))
                yield _reset(cursor)
            while True:
                changed.clear()
                text, after = await self._next(cursor)
                if text:
                    yield ServerSentEvent(text, event="changes", id=str(after))
                elif text is None:
                    self._tables = self._open()
                    yield _reset(after)
                cursor = after
                if (self._problem is None) != (shown_problem is None):
                    shown_problem = self._problem
                    yield _problem(shown_problem, cursor)
                await asyncio.sleep(MIN_INTERVAL_SECONDS)
                await self._changes.wait(changed, self._pause_seconds())

    async def _first_cursor(self) -> Cursor:
        cursor = self._start or Cursor(self._changes.revision)
        return cursor if cursor.metrics_id is not None else await self._with_newest_report(cursor)

    async def _with_newest_report(self, cursor: Cursor) -> Cursor:
        """Returns the cursor without a place among the reports while these cannot be read: `_add_reports` finds one."""
        if self._trial_ids:
            with suppress(GanglineError):
                return replace(cursor, metrics_id=await self._changes.newest_metrics_id())
        return cursor

    async def _is_ahead(self, cursor: Cursor) -> bool:
        """Returns whether the cursor is of a cluster or of a history that is not this one's, or not any more."""
        if not await self._changes.wait_for_revision(cursor.revision, CATCH_UP_SECONDS):
            return True
        if not self._trial_ids or cursor.metrics_id is None:
            return False
        with suppress(GanglineError):
            return cursor.metrics_id > await self._changes.newest_metrics_id()
        return False

    def _pause_seconds(self) -> float:
        polls = self._wanted.queue or (bool(self._trial_ids) and not self._changes.is_alone)
        return LOOK_AGAIN_SECONDS if polls or self._problem is not None else IDLE_SECONDS

    async def _next(self, cursor: Cursor) -> tuple[str | None, Cursor]:
        """Returns the event after a cursor, empty where nothing changed and None for `reset`, and the next cursor.

        A part that cannot be read is left out, and keeps its place in the cursor: the others come all the same.
        """
        if self._scope != self._cases.sight().key:
            # The caller sees other rows from now on.
            self._scope = self._cases.sight().key
            return None, replace(cursor, revision=self._changes.revision, queue="")
        parts, after = self._of_mirror(cursor)
        self._problem = None
        for add in (self._add_queue, self._add_reports):
            try:
                parts, after = await add(parts, after)
            except GanglineError as error:
                self._problem = error
        if parts is None:
            # The event brings no part of the queue, which no page has as a whole: the next one brings all of it.
            return None, replace(after, queue="")
        return (f"{{{parts}}}" if parts else parts), after

    async def _add_queue(self, parts: str | None, after: Cursor) -> tuple[str | None, Cursor]:
        if not self._wanted.queue:
            return parts, after
        try:
            change = await self._hub.queue_of(self._scope).since(after.queue, self._cases.queue.list_in_scope)
        except OtherScopeError:
            # The next event is `reset`, and the queue is read again after it.
            return parts, after
        # The caller may see less since it began to wait for the reading.
        if change is None or self._scope != self._cases.sight().key:
            return parts, after
        gone, is_whole, rows = _json(change.gone), _json(change.is_whole), ",".join(change.rows)
        part = f'"queue":{{"rows":[{rows}],"gone":{gone},"isWhole":{is_whole}}}'
        return _add(parts, part), replace(after, queue=change.version)

    async def _add_reports(self, parts: str | None, after: Cursor) -> tuple[str | None, Cursor]:
        changes = self._changes
        trial_ids = changes.seen_trials(self._trial_ids)
        if not trial_ids:
            return parts, after
        reports = None
        if after.metrics_id is not None:
            reports = await self._hub.metrics.since(
                trial_ids, after.metrics_id, lambda after_id, limit: changes.metrics(trial_ids, after_id, limit)
            )
        if reports is None:
            return None, replace(after, metrics_id=await changes.newest_metrics_id())
        if not reports:
            return parts, after
        part = f'"metrics":[{",".join(text for _, text in reports)}]'
        return _add(parts, part), replace(after, metrics_id=reports[-1][0])

    def _of_mirror(self, cursor: Cursor) -> tuple[str | None, Cursor]:
        """Returns the parts about tables, agents and models, joined by commas."""
        revision = self._changes.revision
        if revision == cursor.revision:
            return "", cursor
        after = replace(cursor, revision=revision)
        changed = self._changes.since(cursor.revision)
        if changed is None or len(changed) > MAX_ROWS or any(topic is Topic.HOME for (topic, _), _ in changed):
            return (None if self._tables or self._wanted.agents or self._wanted.models else ""), after
        if any(len(table.revision_by_id(changed)) * len(table.part.fields) > MAX_VALUES for table in self._tables):
            return None, after
        wanted = (self._wanted.agents, self._wanted.models)
        key = ("event", self._scope, *(table.key for table in self._tables), *wanted, cursor.revision, revision)
        return self._hub.texts.get(key, lambda: self._write(changed)), after

    def _write(self, changed: list[tuple[tuple[Topic, int | str], int]]) -> str:
        parts = [part for table in self._tables if (part := self._write_table(table, changed))]
        if self._wanted.agents and (part := self._write_agents(changed)):
            parts.append(part)
        if self._wanted.models and (part := self._write_models(changed)):
            parts.append(part)
        return ",".join(parts)

    def _write_table(self, table: _OpenTable, changed: list[tuple[tuple[Topic, int | str], int]]) -> str:
        name = table.part.query.table
        chosen = [table.view.fields.find(field_name) for field_name in table.part.fields]
        rows: list[str] = []
        gone: list[int | str] = []
        for id_, revision in table.revision_by_id(changed).items():
            row = table.view.find(id_)
            if row is None or not table.matches(row):
                gone.append(id_)
            else:
                key = (name, table.part.fields, id_, revision)
                rows.append(self._hub.texts.get(key, lambda row=row: _json(values_of(row, chosen))))  # type: ignore[misc]
        return f'"{name}":{{"rows":[{",".join(rows)}],"gone":{_json(gone)}}}' if rows or gone else ""

    def _write_agents(self, changed: list[tuple[tuple[Topic, int | str], int]]) -> str:
        ids = {str(id_) for (topic, id_), _ in changed if topic is Topic.AGENT}
        if not ids:
            return ""
        views = self._cases.agents.find_all(ids)
        rows = ",".join(model.AgentView.model_validate(view).model_dump_json(by_alias=True) for view in views)
        gone = sorted(ids - {view.agent.id for view in views})
        shown = {allocation_id for view in views for allocation_id in view.allocation_id_by_slot_id.values()}
        holders = {
            allocation_id: SlotHolder.model_validate(holder).model_dump(mode="json", by_alias=True)
            for allocation_id, holder in self._cases.agents.holders(shown).items()
        }
        return f'"agents":{{"rows":[{rows}],"gone":{_json(gone)},"holders":{_json(holders)}}}'

    def _write_models(self, changed: list[tuple[tuple[Topic, int | str], int]]) -> str:
        ids = {int(id_) for (topic, id_), _ in changed if topic is Topic.MODEL}
        if not ids:
            return ""
        views = self._cases.registry.find_models(ids)
        rows = ",".join(ModelRow.model_validate(view).model_dump_json(by_alias=True) for view in views)
        return f'"models":{{"rows":[{rows}],"gone":{_json(sorted(ids - {view.model.id for view in views}))}}}'


def _reset(after: Cursor) -> ServerSentEvent:
    reason = '{"reason": "too much has changed since this cursor; read the pages anew"}'
    return ServerSentEvent(reason, event="reset", id=str(after))


def _problem(error: GanglineError | None, after: Cursor) -> ServerSentEvent:
    """Returns the event that says why a part is not up to date; with an empty `detail` where it is again."""
    code, detail = (error.code, error.message) if error is not None else ("", "")
    return ServerSentEvent(_json({"code": code, "detail": detail}), event="problem", id=str(after))


def _add(parts: str | None, part: str) -> str | None:
    """Appends a part, unless the client has to read everything anew."""
    if parts is None:
        return None
    return f"{parts},{part}" if parts else part


def _json(value: object) -> str:
    return to_json(value, inf_nan_mode="null").decode()
