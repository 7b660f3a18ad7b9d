"""Saved views of lists: kept for their owner, and read by every user who knows the id."""

from __future__ import annotations

import time
import uuid

from gangline.domain.saved_view import SavedView, change_view, check_view
from services.gateway.history.saved_view import SavedViewStore
from services.gateway.mirror.auth import Authenticator
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched


class SavedViews:
    def __init__(self, caller: Caller, mirror: Watched, store: SavedViewStore, authenticator: Authenticator) -> None:
        self._caller = caller
        self._mirror = mirror
        self._store = store
        self._authenticator = authenticator

    async def list(self, list_name: str = "") -> list[SavedView]:
        """Returns the caller's views, by list and name. list_name: empty for all lists."""
        return await self._store.list(self._caller_id, list_name)

    async def find(self, view_id: str) -> SavedView:
        """Returns a view of any user. Raises GanglineError `saved_view.not_found`."""
        return await self._store.find(view_id)

    async def create(self, list_name: str, name: str, content_json: str) -> SavedView:
        """Raises GanglineError `saved_view.*`, `document.invalid`, `request.*`."""
        now = time.time()
        view = SavedView(uuid.uuid4().hex, list_name, name, self._caller_id, content_json, 1, now, now)
        check_view(view)
        return await self._store.create(view, self._request_id())

    async def change(self, view_id: str, version: int, name: str | None, content_json: str | None) -> SavedView:
        """Changes a view of the caller. version, name, content_json: as for `change_view`. Raises the same errors, and
        `auth.not_owner`."""

        def change(view: SavedView) -> SavedView:
            self._check_owner(view, "change")
            return change_view(view, version, name, content_json, time.time())

        return await self._store.change(view_id, change, self._request_id())

    async def delete(self, view_id: str) -> bool:
        """Deletes a view of the caller; returns whether there was one. Raises GanglineError `auth.not_owner`."""
        self._caller.check_request_id()
        return await self._store.delete(view_id, lambda view: self._check_owner(view, "delete"))

    @property
    def _caller_id(self) -> int:
        """Returns the caller's id. The cluster itself has 0."""
        return self._authenticator.number_of_user(self._caller.name) if self._caller.principal.kind == "user" else 0

    def _check_owner(self, view: SavedView, action: str) -> None:
        """Raises GanglineError `auth.not_owner`."""
        if view.owner_id != self._caller_id:
            self._caller.check_owner(self._owner_of(view), f"{action} the saved view {view.name!r}")

    def _owner_of(self, view: SavedView) -> str:
        names = [user.name for user in self._mirror.state.users.all()]
        return next((name for name in names if self._authenticator.number_of_user(name) == view.owner_id), "its owner")

    def _request_id(self) -> str:
        """Returns the id of the change; a new one if the request has none. Raises GanglineError `request.*`."""
        self._caller.check_request_id()
        return self._caller.request_id or uuid.uuid4().hex
