"""`gangline checkpoint ...`: finds, downloads and deletes the saved states of trials."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.output.checkpoint_text import checkpoint_lines
from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age, format_bytes
from gangline.cli.shared import MOST_ID, Json, Wide, connect, new_group, show, show_table

app = new_group("Find, fetch, import and delete checkpoints.")

_COLUMNS = (
    Column("CHECKPOINT"),
    Column("TRIAL", 9),
    Column("BATCHES", 7),
    Column("STATE", 8, is_state=True),
    Column("SIZE", 5),
    Column("AGE", 6),
)


@app.command("list")
@app.command("ls", hidden=True)
def list_checkpoints(
    experiment: Annotated[
        int, typer.Argument(metavar="[EXPERIMENT]", help="Only those of this experiment.", min=0, max=MOST_ID)
    ] = 0,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List checkpoints."""
    with connect() as client:
        checkpoints = client.list_checkpoints(experiment)
    now = time.time()
    rows = [
        (
            checkpoint.id,
            checkpoint.trial_id or "imported",
            checkpoint.batches_completed,
            checkpoint.state,
            format_bytes(sum(checkpoint.file_bytes.values())) if checkpoint.file_bytes else "-",
            format_age(checkpoint.created_at, now),
        )
        for checkpoint in checkpoints
    ]
    show_table(checkpoints, _COLUMNS, rows, "no checkpoints yet", is_json=is_json, is_wide=is_wide)


@app.command()
def describe(
    checkpoint_id: Annotated[str, typer.Argument(metavar="ID")],
    is_json: Json = False,
) -> None:
    """Show a checkpoint: where it comes from, its metadata and its files."""
    with connect() as client:
        checkpoint = client.checkpoint(checkpoint_id).record
    show(checkpoint, is_json, lambda: checkpoint_lines(checkpoint))


@app.command("import")
def import_checkpoint(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a checkpoint, with all its files.")],
    name: Annotated[str, typer.Option(help="The name to list it under; default: the folder's.")] = "",
    is_json: Json = False,
) -> None:
    """Bring a checkpoint of Determined, of another cluster or of a script into the cluster's storage."""
    with connect() as client:
        imported = client.import_checkpoint(folder, name)
    checkpoint = imported.checkpoint
    size = format_bytes(sum(checkpoint.file_bytes.values()))
    text = f"{size} of batch {checkpoint.batches_completed}, named {checkpoint.imported_as}"
    said = f"imported: {text}" if imported.is_new else f"this content was imported before: {text}"
    lines = [said, f"checkpoint {checkpoint.id}"]
    hint = f"begin from it with: searcher: {{source_checkpoint_uuid: {checkpoint.id}}}"
    show(imported, is_json, lambda: [*lines, hint])


@app.command()
def download(
    checkpoint_id: Annotated[str, typer.Argument(metavar="ID")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new folder; default: the id.")] = None,
    is_json: Json = False,
) -> None:
    """Fetch the files of a checkpoint into a folder."""
    folder = output or Path(checkpoint_id)
    with connect() as client:
        num_bytes = client.download_checkpoint(checkpoint_id, folder)
    record = {"checkpoint_id": checkpoint_id, "folder": str(folder.resolve()), "num_bytes": num_bytes}
    show(record, is_json, lambda: [f"{format_bytes(num_bytes)} in {folder.resolve()}"])


@app.command()
def rm(
    checkpoint_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the checkpoints.")],
    is_json: Json = False,
) -> None:
    """Delete the named checkpoints, all or none; refused for one from which a trial would resume."""
    with connect() as client:
        checkpoints = client.delete_checkpoints(checkpoint_ids)
    show(checkpoints, is_json, lambda: [f"{checkpoint.id} is being deleted" for checkpoint in checkpoints])
