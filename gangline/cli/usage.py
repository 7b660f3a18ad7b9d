"""`gangline usage`: the slot-hours of a period, by owner, pool, experiment, project or workspace."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from gangline.cli.account.quota import describe
from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import say
from gangline.cli.shared import Json, Wide, connect, show_table

_COLUMNS = (Column("GPU SLOT-HOURS", 3), Column("CPU SLOT-HOURS", 2), Column("ALLOCATIONS", 1))


class By(StrEnum):
    OWNER = "owner"
    POOL = "pool"
    EXPERIMENT = "experiment"
    PROJECT = "project"
    WORKSPACE = "workspace"


# The kind of quota that is shown with a report.
_QUOTA_KINDS = {By.OWNER: "user", By.WORKSPACE: "workspace"}


def usage(
    since: Annotated[str, typer.Option(metavar="WHEN", help="A date, a time, or an age such as 7d or 12h.")],
    until: Annotated[str, typer.Option(metavar="WHEN", help="The same; default: now.")] = "",
    by: Annotated[By, typer.Option(help="What to add up.")] = By.OWNER,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """Show the slot-hours that were used in a period: of slots held, from their placement until they were free again.

    Allocations that are still running count until now. Times without a zone are local. By owner or workspace, lines
    below the table show the quotas: what is used of them, and what is left.
    """
    from gangline.domain.state import UsageGroup  # noqa: PLC0415 - one command needs it
    from gangline.when import check_period, parse_when  # noqa: PLC0415 - as above

    now = time.time()
    begin, end = parse_when(since, now, "--since"), parse_when(until, now, "--until") if until else now
    check_period(begin, end, now)
    with connect() as client:
        report = client.get_usage(begin, end if until else 0.0, UsageGroup[by.name])
        quotas = [] if is_json or by not in _QUOTA_KINDS else client.list_quotas()
    rows = [
        (entry.key, _hours(entry.gpu_slot_seconds), _hours(entry.cpu_slot_seconds), entry.num_allocations)
        for entry in report.entries
    ]
    columns = (Column(by.name), *_COLUMNS)
    show_table(report, columns, rows, "no slots were held in this period", is_json=is_json, is_wide=is_wide)
    say(f"quota of {describe(quota)}" for quota in quotas if quota.subject.kind == _QUOTA_KINDS[by])


def _hours(slot_seconds: float) -> str:
    return f"{slot_seconds / 3600:.3f}"
