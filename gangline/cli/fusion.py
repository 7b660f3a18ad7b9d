"""`gangline fusion ...`: the remembered results of tuning tensor fusion, so that like trials need not tune again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age, format_bytes
from gangline.cli.shared import Json, add_list, connect, new_group, show
from gangline.errors import invalid, not_found

if TYPE_CHECKING:
    from gangline.domain.fusion import FusionRecord

app = new_group("See what tuning of tensor fusion has found, and have it tuned anew.")

_COLUMNS = (
    Column("KEY"),
    Column("FOR", 7, least=16),
    Column("BUCKETS", 8, least=12),
    Column("GAIN", 9),
    Column("STEPS", 2),
    Column("TRIAL", 4),
    Column("AGE", 3),
)


def _row(record: FusionRecord, now: float) -> tuple[object, ...]:
    return (
        record.key,
        record.summary,
        _buckets(record),
        "" if record.is_default else f"{record.gain_ratio:.2f}x",
        record.steps,
        record.trial_id,
        format_age(record.created_at, now),
    )


add_list(
    app,
    "List the remembered results, newest first.",
    lambda client: client.list_fusion(),
    _COLUMNS,
    _row,
    empty="nothing is remembered yet; set optimizations.auto_tune_tensor_fusion",
)


@app.command()
def forget(
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="The key of one record.")] = "",
    is_all: Annotated[bool, typer.Option("--all", help="All records.")] = False,
    is_json: Json = False,
) -> None:
    """Make the next trial of a kind tune anew."""
    if bool(key) == is_all:
        raise invalid("fusion.which", "name one key, or say --all; gangline fusion list shows the keys")
    with connect() as client:
        keys = [record.key for record in client.list_fusion()] if is_all else [key]
        forgotten = [record_key for record_key in keys if client.forget_fusion(record_key)]
    if key and not forgotten:
        raise not_found("fusion.not_found", f"nothing is remembered under {key}; list it with: gangline fusion list")
    show({"forgotten": forgotten}, is_json, lambda: [f"forgotten: {', '.join(forgotten) or 'nothing was remembered'}"])


def _buckets(record: FusionRecord) -> str:
    if record.is_default:
        return "torch's"
    count, total = len(record.bucket_bytes), sum(record.bucket_bytes)
    if total == record.total_bytes:
        return f"{count} of ~{format_bytes(total // count)}"
    return f"capped at {', '.join(format_bytes(cap) for cap in record.bucket_bytes)}"
