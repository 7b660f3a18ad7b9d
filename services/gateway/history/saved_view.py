"""Stores the views that users save. Each change is one transaction, and a change that is sent again changes nothing.

Owns what the transactions compare: names, numbers of views, and the ids of requests. The rules of a single view are in
gangline.domain.saved_view. The queries block, so they run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TypeVar

import sqlalchemy as sa

from gangline.domain.saved_view import MAX_VIEWS, SavedView, name_taken, no_view, too_many_views
from gangline.errors import invalid, unavailable
from services.gateway.history import table
from services.gateway.history.database import reading, writing

T = TypeVar("T")

_ROWS = table.saved_views
_NAMES = [field.name for field in fields(SavedView)]


class SavedViewStore:
    """Every method raises GanglineError `saved_view.unavailable` while the database cannot be used."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    async def list(self, owner_id: int, list_name: str) -> list[SavedView]:
        """Returns the views of a user by list and name. list_name: empty for all lists."""

        def query() -> list[SavedView]:
            selected = sa.select(_ROWS).where(_ROWS.c.owner_id == owner_id)
            if list_name:
                selected = selected.where(_ROWS.c.list_name == table.storable(list_name))
            with reading(self._engine) as connection:
                return [_view_of(row) for row in connection.execute(selected)]

        return sorted(await _run(query), key=lambda view: (view.list_name, view.name))

    async def find(self, view_id: str) -> SavedView:
        """Raises GanglineError `saved_view.not_found`."""

        def query() -> SavedView:
            with reading(self._engine) as connection:
                return _view_of(_find(connection, view_id))

        return await _run(query)

    async def create(self, view: SavedView, request_id: str) -> SavedView:
        """Returns the view that the request with this id has made, now or before. Raises GanglineError
        `saved_view.exists`, `saved_view.too_many`, `request.reused`."""

        def work() -> SavedView:
            with writing(self._engine) as connection:
                own = _ROWS.c.owner_id == view.owner_id
                earlier = connection.execute(sa.select(_ROWS).where(own, _ROWS.c.created_by == request_id)).first()
                if earlier is not None:
                    return _made_before(_view_of(earlier), view)
                _check_name(connection, view)
                if (connection.scalar(sa.select(sa.func.count()).where(own)) or 0) >= MAX_VIEWS:
                    raise too_many_views()
                row = {**asdict(view), "created_by": request_id, "changed_by": ""}
                connection.execute(sa.insert(_ROWS), row)
            return view

        return await _run(work)

    async def change(self, view_id: str, change: Callable[[SavedView], SavedView], request_id: str) -> SavedView:
        """Replaces a view by what `change` makes of it, which may raise. Raises GanglineError `saved_view.not_found`,
        `saved_view.exists`."""

        def work() -> SavedView:
            with writing(self._engine) as connection:
                row = _find(connection, view_id)
                before = _view_of(row)
                if row.changed_by == request_id:
                    return before
                after = change(before)
                if after.name != before.name:
                    _check_name(connection, after)
                values = {**asdict(after), "changed_by": request_id}
                connection.execute(sa.update(_ROWS).where(_ROWS.c.id == view_id).values(**values))
            return after

        return await _run(work)

    async def delete(self, view_id: str, check: Callable[[SavedView], None]) -> bool:
        """Deletes a view unless `check` raises. Returns whether there was one."""

        def work() -> bool:
            is_it = _ROWS.c.id == table.storable(view_id)
            with writing(self._engine) as connection:
                row = connection.execute(sa.select(_ROWS).where(is_it)).first()
                if row is not None:
                    check(_view_of(row))
                    connection.execute(sa.delete(_ROWS).where(is_it))
            return row is not None

        return await _run(work)


async def _run(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except sa.exc.OperationalError as failure:
        raise unavailable(
            "saved_view.unavailable",
            f"saved views cannot be read or stored now: {str(failure.orig).splitlines()[0]}; try again later",
        ) from failure


def _find(connection: sa.Connection, view_id: str) -> Any:
    row = connection.execute(sa.select(_ROWS).where(_ROWS.c.id == table.storable(view_id))).first()
    if row is None:
        raise no_view(view_id)
    return row


def _check_name(connection: sa.Connection, view: SavedView) -> None:
    same = (_ROWS.c.owner_id == view.owner_id, _ROWS.c.list_name == view.list_name, _ROWS.c.name == view.name)
    if connection.execute(sa.select(_ROWS.c.id).where(*same)).first() is not None:
        raise name_taken(view)


def _made_before(stored: SavedView, wanted: SavedView) -> SavedView:
    """Returns the view of an earlier request with the same id, whose name and content may have been changed since.
    Raises GanglineError `request.reused`."""
    is_same = (stored.name, stored.content_json) == (wanted.name, wanted.content_json)
    if stored.list_name != wanted.list_name or (stored.version == 1 and not is_same):
        raise invalid(
            "request.reused",
            f"this request id has saved the view {stored.name!r} of {stored.list_name}; use a new one for another view",
        )
    return stored


def _view_of(row: Any) -> SavedView:
    return SavedView(**{name: getattr(row, name) for name in _NAMES})
