"""`gangline migrate`: what is to be done before work from Determined runs here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.shared import Json, show

if TYPE_CHECKING:
    from gangline.migrate.check import Finding
    from gangline.migrate.cluster import Migration

app = typer.Typer(no_args_is_help=True, help="Move work from Determined to Gangline.")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the experiments, with all folders below it.")],
    *,
    is_json: Json = False,
) -> None:
    """Show which experiment files and programs of a folder run as they are. Nothing is run, and no cluster is asked.

    Exits with 2 when a file needs a change.
    """
    from gangline.migrate.check import Verdict, check_folder  # noqa: PLC0415 - loads pydantic

    found = check_folder(folder)
    show(found, is_json, lambda: _lines(found, folder))
    if any(finding.verdict is Verdict.CHANGE for finding in found):
        raise typer.Exit(2)


def _lines(found: list[Finding], folder: Path) -> list[str]:
    from gangline.cli.output.text import count  # noqa: PLC0415 - with the above
    from gangline.migrate.check import Verdict  # noqa: PLC0415 - as above

    if not found:
        return [f"{folder} has no experiment file, and no program that uses Determined"]
    width = max(map(len, Verdict))
    lines = []
    for finding in found:
        lines.append(f"{finding.verdict:<{width}}  {finding.path}")
        lines += [f"{'':{width}}    {note}" for note in finding.notes]
    counts = Counter(finding.verdict for finding in found)
    runs, warned, changed = (counts[verdict] for verdict in Verdict)
    told = f"{runs} as they are, {warned} with a warning, {changed} after a change"
    return [*lines, f"{count(len(found), 'file')}, of which run: {told}"]


@app.command()
def cluster(
    master: Annotated[Path, typer.Argument(help="Determined's master.yaml.")],
    agent: Annotated[Path | None, typer.Argument(help="An agent.yaml.")] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder for the files; without it they are printed.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Make the settings of scheduler, gateway and agent from Determined's files, and tell what became of each key.

    Nothing is overwritten. Exits with 2 when a key is unknown.
    """
    from gangline.migrate.cluster import migrate_cluster, write_files  # noqa: PLC0415 - loads pydantic
    from gangline.migrate.cluster_key import Fate  # noqa: PLC0415 - with the above

    migration = migrate_cluster(master, agent)
    paths = write_files(migration, output) if output is not None else []
    show(migration, is_json, lambda: _cluster_lines(migration, paths))
    if any(entry.fate is Fate.UNKNOWN for entry in migration.entries):
        raise typer.Exit(2)


def _cluster_lines(migration: Migration, paths: list[Path]) -> list[str]:
    from gangline.migrate.cluster_key import Fate  # noqa: PLC0415 - loads pydantic

    lines = []
    for fate in Fate:
        of_fate = [entry for entry in migration.entries if entry.fate is fate]
        if of_fate:
            lines += [f"{fate}:", *(f"  {entry.file}: {entry.path}: {entry.note}" for entry in of_fate), ""]
    if paths:
        return [*lines, *(f"wrote {path}" for path in paths)]
    for name, text in migration.text_by_name.items():
        lines += [f"--- {name}", *text.splitlines(), ""]
    return lines[:-1]
