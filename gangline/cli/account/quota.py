"""`gangline quota ...`: sets, removes and shows the quotas of users and workspaces."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.shared import Json, add_list, connect, new_group, show
from gangline.domain.quota import format_hours
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.domain.quota import QuotaView

app = new_group("Set, remove and show the quotas of users and workspaces.")

_NO_LIMIT = "none"
_COLUMNS = (
    Column("KIND"),
    Column("NAME", 9, least=12),
    Column("SLOTS HELD", 8),
    Column("SLOTS", 8),
    Column("MONTH", 3),
    Column("HOURS USED", 7),
    Column("SLOT-HOURS", 7),
    Column("HOURS LEFT", 6),
)


class Kind(StrEnum):
    USER = "user"
    WORKSPACE = "workspace"


KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="user or workspace.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the user or of the workspace.")]


@app.command("set")
def set_(
    kind: KindArgument,
    name: Name,
    *,
    slots: Annotated[
        str | None, typer.Option("--slots", metavar="N", help="Slots at a time, over all pools; none lifts the limit.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option("--slot-hours", metavar="H", help="Slot-hours in a calendar month (UTC); none lifts the limit."),
    ] = None,
    is_json: Json = False,
) -> None:
    """Limit the slots at a time, or the slot-hours in a month; for administrators. What runs goes on."""
    if slots is None and hours is None:
        raise invalid("cli.nothing_to_change", "there is nothing to change; give --slots, --slot-hours or both")
    max_slots, slot_hours = _number(slots, "--slots"), _number(hours, "--slot-hours")
    if max_slots is not None and not max_slots.is_integer():
        raise invalid("quota.value", f"--slots: {slots} is no whole number")
    with connect() as client:
        quota = client.set_quota(
            kind, name, max_slots=None if max_slots is None else int(max_slots), slot_hours=slot_hours
        )
    show(quota, is_json, lambda: [describe(quota)])


@app.command()
def remove(kind: KindArgument, name: Name, is_json: Json = False) -> None:
    """Remove both limits; for administrators."""
    with connect() as client:
        client.remove_quota(kind, name)
    show({"kind": kind, "name": name}, is_json, lambda: [f"{kind} {name} has no quota now"])


@app.command("show")
def show_one(kind: KindArgument, name: Name, is_json: Json = False) -> None:
    """Show a quota with its use."""
    with connect() as client:
        quota = client.find_quota(kind, name)
    show(quota, is_json, lambda: [describe(quota)])


def describe(quota: QuotaView) -> str:
    """Returns one line: what is used of a quota, and what is left."""
    parts = []
    if quota.max_slots is not None:
        parts.append(f"holds {quota.held_slots} of {quota.max_slots} slots, {quota.left_slots} left")
    if quota.slot_hours is not None:
        used, hours = format_hours(quota.used_hours), format_hours(quota.slot_hours)
        left = format_hours(quota.left_hours or 0.0)
        parts.append(f"has used {used} of {hours} slot-hours in {quota.month}, {left} left")
    return f"{quota.subject.kind} {quota.name}: {'; '.join(parts) or 'no quota'}"


def _row(quota: QuotaView, _now: float) -> tuple[object, ...]:
    return (
        quota.subject.kind,
        quota.name,
        quota.held_slots,
        "" if quota.max_slots is None else quota.max_slots,
        quota.month,
        format_hours(quota.used_hours),
        "" if quota.slot_hours is None else format_hours(quota.slot_hours),
        "" if quota.left_hours is None else format_hours(quota.left_hours),
    )


def _number(text: str | None, option: str) -> float | None:
    """Returns -1 for a limit that is to be lifted; None for an option that is not given."""
    if text is None:
        return None
    if text == _NO_LIMIT:
        return -1.0
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    # The comparison is false for NaN, too.
    if not number >= 0:
        raise invalid("quota.value", f"{option}: {text!r} is no number of 0 or more; give one, or {_NO_LIMIT!r}")
    if number == float("inf"):
        raise invalid("quota.value", f"{option}: {text!r} is no limit; give {_NO_LIMIT!r} to lift it")
    return number


add_list(
    app, "List quotas with their use.", lambda client: client.list_quotas(), _COLUMNS, _row, empty="no quotas are set"
)
