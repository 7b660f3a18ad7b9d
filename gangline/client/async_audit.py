"""The twin of gangline.client.audit for asyncio.

Written by scripts/generate_async_client.py from audit.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

from gangline.client.async_cluster_calls import AsyncClusterCalls
from gangline.domain.audit import DEFAULT_LIMIT, AuditFilter, AuditRecord
from gangline.protocol.wire import from_proto, to_proto
from gangline.v1 import audit_pb2


class AsyncAuditMethods(AsyncClusterCalls):
    """Base of Client."""

    async def list_audit(
        self,
        *,
        user: str = "",
        action: str = "",
        object: str = "",
        since: float = 0.0,
        until: float = 0.0,
        outcome: str = "",
        address: str = "",
        limit: int = DEFAULT_LIMIT,
        before: str = "",
    ) -> tuple[list[AuditRecord], str]:
        """Returns a page of the audit log, the newest first, and `before` of the next page; "" at the end.

        action: such as "experiment.kill", or "experiment" for all actions on experiments. object: such as "experiment"
        or "experiment/7". since, until: Unix seconds. outcome: "done", "failed" or an error's code. limit: at most
        1000. For administrators, else it raises GanglineError `auth.not_admin`.
        """
        wanted = AuditFilter(user, action, object, since, until, outcome, address)
        request = audit_pb2.ListAuditRequest(filter=to_proto(wanted), limit=limit, before=before)
        answer = await self._connection.call(self._stub.ListAudit, request)
        return [from_proto(AuditRecord, message) for message in answer.records], answer.next
