"""The SDK's methods about saved views of lists.

Client inherits them. scripts/generate_async_client.py writes async_saved_view.py from this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gangline.client.call_message import new_request_id
from gangline.client.cluster_calls import ClusterCalls
from gangline.domain.document import check_document
from gangline.domain.saved_view import SavedView
from gangline.protocol.wire import from_proto
from gangline.v1 import gateway_pb2 as pb


class SavedViewMethods(ClusterCalls):
    """Base of Client. Changes raise GanglineError `saved_view.*`, and `auth.not_owner` for the view of another user."""

    def list_saved_views(self, list_name: str = "") -> list[SavedView]:
        """Returns one's own views, by list and name. list_name: only those of this list, such as "experiments"."""
        answer = self._connection.call(self._stub.ListSavedViews, pb.ListSavedViewsRequest(list_name=list_name))
        return [from_proto(SavedView, message) for message in answer.views]

    def get_saved_view(self, view_id: str) -> SavedView:
        """Returns a view of any user. Raises GanglineError `saved_view.not_found`."""
        answer = self._connection.call(self._stub.GetSavedView, pb.GetSavedViewRequest(view_id=view_id))
        return from_proto(SavedView, answer.view)

    def create_saved_view(
        self, list_name: str, name: str, content: Mapping[str, Any], request_id: str | None = None
    ) -> SavedView:
        """Saves a view of a list under a name. content: at most 16 KiB of JSON, which only the page reads."""
        request = pb.CreateSavedViewRequest(
            request_id=request_id or new_request_id(), list_name=list_name, name=name, content_json=_text(content)
        )
        return from_proto(SavedView, self._connection.call(self._stub.CreateSavedView, request).view)

    def update_saved_view(
        self,
        view_id: str,
        version: int,
        *,
        name: str | None = None,
        content: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> SavedView:
        """Changes a view; None leaves its name or content. version: the one from which the change is made. Raises
        GanglineError `saved_view.changed` if the view has another one by now."""
        request = pb.UpdateSavedViewRequest(
            request_id=request_id or new_request_id(),
            view_id=view_id,
            version=version,
            name=name,
            content_json=None if content is None else _text(content),
        )
        return from_proto(SavedView, self._connection.call(self._stub.UpdateSavedView, request).view)

    def delete_saved_view(self, view_id: str, request_id: str | None = None) -> bool:
        """Deletes a view; returns whether there was one."""
        request = pb.DeleteSavedViewRequest(request_id=request_id or new_request_id(), view_id=view_id)
        return self._connection.call(self._stub.DeleteSavedView, request).is_deleted


def _text(content: Mapping[str, Any]) -> str:
    """Raises GanglineError `document.invalid`."""
    text = json.dumps(dict(content), ensure_ascii=False, separators=(",", ":"))
    check_document(text, "the content of a view")
    return text
