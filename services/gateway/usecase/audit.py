"""Reads the audit log, for administrators."""

from __future__ import annotations

from gangline.domain.audit import DEFAULT_LIMIT, AuditFilter, AuditRecord, check_audit_filter, parse_place, place_of
from services.gateway.history.audit_rows import AuditRows
from services.gateway.mirror.caller import Caller


class AuditReads:
    def __init__(self, caller: Caller, rows: AuditRows) -> None:
        self._caller = caller
        self._rows = rows

    async def list(self, wanted: AuditFilter, limit: int = 0, before: str = "") -> tuple[list[AuditRecord], str]:
        """Returns a page of the records that match, the newest first, and where the next page begins; "" at the end.

        limit: 0 for the default. before: where the page begins, from an earlier answer; "" for the newest. Raises
        GanglineError `auth.not_admin`, `audit.*`, `request.limit`.
        """
        self._caller.check_admin("read the audit log")
        check_audit_filter(wanted, limit)
        records = await self._rows.list(wanted, limit, parse_place(before))
        is_full = len(records) == (limit or DEFAULT_LIMIT)
        return records, place_of(records[-1]) if is_full else ""
