"""The SDK's methods about quotas of users and workspaces.

Client inherits them. scripts/generate_async_client.py writes async_quota.py from this file.
"""

from __future__ import annotations

from gangline.client.call_message import new_request_id
from gangline.client.cluster_calls import ClusterCalls
from gangline.domain.quota import QuotaChange, QuotaView, check_quota_kind, no_quota
from gangline.protocol.wire import from_proto, to_proto
from gangline.v1 import quota_pb2


class QuotaMethods(ClusterCalls):
    """Base of Client. Changes are for administrators, else they raise GanglineError `auth.not_admin`. kind: "user" or
    "workspace"."""

    def list_quotas(self) -> list[QuotaView]:
        """Returns quotas with their use, by kind and name. Administrators see all; a user sees the own one, and those
        of workspaces."""
        answer = self._connection.call(self._stub.ListQuotas, quota_pb2.ListQuotasRequest())
        return [from_proto(QuotaView, message) for message in answer.quotas]

    def find_quota(self, kind: str, name: str) -> QuotaView:
        """Raises GanglineError `quota.kind` or `quota.not_found`."""
        check_quota_kind(kind)
        for view in self.list_quotas():
            if (view.subject.kind, view.name) == (kind, name):
                return view
        raise no_quota(kind, name)

    def set_quota(
        self,
        kind: str,
        name: str,
        *,
        max_slots: int | None = None,
        slot_hours: float | None = None,
        request_id: str | None = None,
    ) -> QuotaView:
        """Limits the slots at a time, and the slot-hours in a calendar month (UTC). None leaves a limit as it is, and a
        negative value lifts it. Raises GanglineError `quota.*`, `user.not_found`, `workspace.not_found`."""
        request = quota_pb2.SetQuotaRequest(
            request_id=request_id or new_request_id(),
            kind=kind,
            name=name,
            change=to_proto(QuotaChange(max_slots, slot_hours)),
        )
        return from_proto(QuotaView, self._connection.call(self._stub.SetQuota, request).quota)

    def remove_quota(self, kind: str, name: str, request_id: str | None = None) -> None:
        """Removes both limits. A quota that does not exist stays so."""
        request = quota_pb2.RemoveQuotaRequest(request_id=request_id or new_request_id(), kind=kind, name=name)
        self._connection.call(self._stub.RemoveQuota, request)
