"""The audit log as CSV, which commands print and gateways send.

Names come from users, so a cell neither acts on a terminal nor is evaluated by a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from gangline.domain.audit import AuditRecord
from gangline.printable import to_line

CSV_COLUMNS = (
    "time", "actor_kind", "actor", "credential", "address", "surface", "action", "object_kind", "object_id",
    "workspace", "changes", "outcome", "request_id",
)  # fmt: skip
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@")


def csv_of(records: Iterable[AuditRecord], *, with_header: bool = True) -> str:
    """Returns the records as CSV of RFC 4180."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\r\n")
    if with_header:
        writer.writerow(CSV_COLUMNS)
    for record in records:
        writer.writerow(map(safe_cell, _cells_of(record)))
    return target.getvalue()


def safe_cell(text: str) -> str:
    """Returns a cell that no spreadsheet evaluates and that has no control characters."""
    shown = to_line(text)
    # Spreadsheets skip blanks before a formula.
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _cells_of(record: AuditRecord) -> Sequence[str]:
    time = datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    changes = "" if record.changes_json == "{}" else record.changes_json
    return (
        time, record.actor_kind, record.actor, record.credential, record.address, record.surface, record.action,
        record.object_kind, record.object_id, record.workspace, changes, record.outcome, record.request_id,
    )  # fmt: skip
