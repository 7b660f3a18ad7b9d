"""`gangline audit`: who has changed what, from where, and what was refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import say, say_document, say_json
from gangline.cli.shared import Wide, connect, format_instant, show_table
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.audit import AuditFilter, AuditRecord

_COLUMNS = (
    Column("TIME"),
    Column("USER", 9, least=8),
    Column("ACTION", 8, least=12),
    Column("OBJECT", 7, least=10),
    Column("OUTCOME", 6, least=6),
    Column("CHANGES", 2, least=12),
    Column("ADDRESS", 4),
    Column("TOKEN", 3, least=8),
    Column("REQUEST", 1, least=8),
)
_PAGE = 1000


def audit(
    *,
    user: Annotated[str, typer.Option(metavar="NAME", help="Only what this user did.")] = "",
    action: Annotated[
        str, typer.Option(metavar="ACTION", help="Only this action, as experiment.kill, or experiment for all of them.")
    ] = "",
    object_: Annotated[
        str, typer.Option("--object", metavar="KIND[/ID]", help="Only what was done to this, as experiment/7.")
    ] = "",
    since: Annotated[str, typer.Option(metavar="WHEN", help="A date, a time, or an age such as 7d or 12h.")] = "",
    until: Annotated[str, typer.Option(metavar="WHEN", help="The same; default: now.")] = "",
    outcome: Annotated[
        str, typer.Option(metavar="OUTCOME", help="Only done, repeated, failed, or the code of an error.")
    ] = "",
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="Only what came from this address.")] = "",
    limit: Annotated[int, typer.Option(help="Most records; 0: all.", min=0)] = 50,
    is_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on each line.")] = False,
    is_wide: Wide = False,
) -> None:
    """List what was changed, by whom and from where, and what was refused; the newest first. For administrators."""
    from gangline.audit_csv import csv_of  # noqa: PLC0415 - one command needs it
    from gangline.domain.audit import AuditFilter  # noqa: PLC0415 - as above
    from gangline.when import parse_when  # noqa: PLC0415 - as above

    if is_csv and is_json:
        raise invalid("cli.one_form", "give either --csv or --json")
    now = time.time()
    begin = parse_when(since, now, "--since") if since else 0.0
    end = parse_when(until, now, "--until") if until else 0.0
    wanted = AuditFilter(user, action, object_, begin, end, outcome, address)
    with connect() as client:
        if is_csv:
            is_first = True
            for page in _pages(client, wanted, limit):
                say_document(csv_of(page, with_header=is_first).replace("\r\n", "\n"))
                is_first = False
        elif is_json:
            for page in _pages(client, wanted, limit):
                for record in page:
                    say_json(_document(record), None, flush=True)
        else:
            records = [record for page in _pages(client, wanted, limit) for record in page]
            show_table(
                records, _COLUMNS, [_row(record) for record in records], "no records match", is_json=False,
                is_wide=is_wide,
            )  # fmt: skip
            if limit and len(records) == limit:
                say([f"the newest {limit} records; --limit 0 shows all"])


def _pages(client: Client, wanted: AuditFilter, limit: int) -> Iterator[list[AuditRecord]]:
    """Yields pages, and at least one, until so many records have come. limit: 0 for all."""
    from dataclasses import asdict  # noqa: PLC0415 - one command needs it

    before, left = "", limit
    while True:
        size = min(left, _PAGE) if limit else _PAGE
        records, before = client.list_audit(**asdict(wanted), limit=size, before=before)
        yield records
        left -= len(records)
        if not before or (limit and left <= 0):
            return


def _row(record: AuditRecord) -> tuple[object, ...]:
    actor = record.actor if record.actor_kind == "user" else f"{record.actor_kind} {record.actor}".strip()
    place = f"{record.object_kind}/{record.object_id}" if record.object_id else record.object_kind
    return (
        format_instant(record.at), actor, record.action, place, record.outcome, _changes(record), record.address,
        record.credential, record.request_id,
    )  # fmt: skip


def _changes(record: AuditRecord) -> str:
    """Returns the changes in one line, as `priority: 50 -> 10`."""
    parts = []
    for name, change in record.changes.items():
        old, new = (str(change[side]) if side in change else "" for side in ("old", "new"))
        parts.append(f"{name}: {old} -> {new}" if "old" in change else f"{name}: {new}")
    return ", ".join(parts)


def _document(record: AuditRecord) -> dict[str, object]:
    from dataclasses import asdict  # noqa: PLC0415 - one command needs it

    document = asdict(record)
    del document["changes_json"]
    return {**document, "changes": record.changes}
