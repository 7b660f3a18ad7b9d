"""`gangline model ...`: creates, lists and changes models, registers checkpoints as versions, and moves aliases."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import table_lines
from gangline.cli.output.text import format_age, format_bytes
from gangline.cli.project.named_command import (
    CommandGroup,
    ModelName,
    Options,
    Yes,
    add_changes,
    add_create,
    confirm_deletion,
)
from gangline.cli.shared import MOST_ID, Json, Wide, connect, new_group, show, show_table
from gangline.domain.document import read_document
from gangline.domain.named_kind import MODEL
from gangline.domain.registry import ModelFilter
from gangline.errors import invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.domain.registry import ModelVersionView, ModelView

app = new_group("Create models, register checkpoints as their versions, and name versions by aliases.")

Number = Annotated[int, typer.Argument(metavar="VERSION", help="The number of the version.", min=1, max=MOST_ID)]
AnyVersion = Annotated[str, typer.Argument(metavar="VERSION", help="The number of the version, or an alias.")]
Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="The alias, such as champion.")]
Notes = Annotated[str | None, typer.Option("--notes", metavar="TEXT", help="Markdown; '' removes them.")]
NotesFile = Annotated[Path | None, typer.Option("--notes-file", metavar="FILE", help="The same, from a file.")]
Metadata = Annotated[
    str | None, typer.Option("--metadata", metavar="JSON", help="A JSON object, which replaces all metadata.")
]
VersionName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="A name of the version; '' removes it.")
]
Expected = Annotated[
    int | None,
    typer.Option(
        "--expect",
        metavar="VERSION",
        help="Refuse if the alias points elsewhere by now; 0: nowhere.",
        min=0,
        max=MOST_ID,
    ),
]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1, max=1000)]

_COLUMNS = (
    Column("NAME", 9, least=12),
    Column("NEWEST", 6),
    Column("VERSIONS", 5),
    Column("ALIASES", 8, least=12),
    Column("OWNER", 4, least=8),
    Column("WORKSPACE", 2, least=8),
    Column("STATE", 7),
    Column("CHANGED", 3),
)
_VERSION_COLUMNS = (
    Column("MODEL", 4, least=12),
    Column("VERSION", 9),
    Column("ALIASES", 8, least=12),
    Column("NAME", 3, least=8),
    Column("CHECKPOINT", 6),
    Column("TRIAL", 5),
    Column("BATCHES", 4),
    Column("METRICS", 7, least=12),
    Column("OWNER", 2, least=8),
    Column("AGE", 3),
)


@dataclass(frozen=True)
class ModelOptions(Options):
    """The options of `create` and `edit`."""

    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="One sentence; '' removes it.")
    ] = None
    notes: Notes = None
    notes_file: NotesFile = None
    workspace: Annotated[str | None, typer.Option("--workspace", metavar="NAME", help="The workspace it is in.")] = None
    metadata: Metadata = None
    add_labels: Annotated[list[str] | None, typer.Option("--label", metavar="LABEL", help="Add a label.")] = None
    remove_labels: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="LABEL", help="Remove a label.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's method. Raises GanglineError `model.two_notes`, `document.invalid`."""
        return {
            "description": self.description,
            "notes": _notes(self.notes, self.notes_file),
            "workspace": self.workspace,
            "metadata": _metadata(self.metadata),
            "add_labels": self.add_labels or (),
            "remove_labels": self.remove_labels or (),
        }


_GROUP = CommandGroup(
    MODEL,
    {"name": ModelName},
    ModelOptions,
    Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")],
    {
        "create": "Create a model, whose versions are checkpoints.",
        "edit": "Rename a model, or change its texts, labels, metadata or workspace.",
        "archive": "Keep new versions out of a model.",
        "unarchive": "Let new versions into an archived model again.",
        "delete": "Delete a model. It is refused while it has versions.",
    },
)

add_create(app, _GROUP)


@app.command("list")
@app.command("ls", hidden=True)
def list_models(
    *,
    name: Annotated[str, typer.Option(metavar="TEXT", help="Only models whose name contains this.")] = "",
    workspace: Annotated[str, typer.Option(metavar="NAME", help="Only models of this workspace.")] = "",
    owner: Annotated[str, typer.Option(metavar="USER", help="Only models of this user.")] = "",
    labels: Annotated[list[str] | None, typer.Option("--label", help="Only models with this label.")] = None,
    limit: Limit = 50,
    is_all: Annotated[bool, typer.Option("--all", help="Archived ones as well.")] = False,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List models by name."""
    wanted = ModelFilter(name, workspace, owner, tuple(labels or ()), None if is_all else False)
    with connect() as client:
        views = client.list_models(limit, wanted=wanted)
    now = time.time()
    rows = [_row(view, now) for view in views]
    empty = "no models yet; create one with gangline model create NAME"
    show_table(views, _COLUMNS, rows, empty, is_json=is_json, is_wide=is_wide)


@app.command()
def describe(name: ModelName, is_json: Json = False) -> None:
    """Show one model with its aliases, its notes and its newest versions."""
    with connect() as client:
        view = client.find_model(name)
        versions = client.list_model_versions(name)
    now = time.time()

    def lines() -> list[str]:
        if not versions:
            hint = f"register a checkpoint: gangline model register {shlex.quote(name)} CHECKPOINT"
            return [*_lines(view), hint]
        return [*_lines(view), *table_lines(_VERSION_COLUMNS, [_version_row(each, now) for each in versions])]

    show({"model": view, "versions": versions}, is_json, lines)


add_changes(app, _GROUP)


@app.command()
def register(
    name: ModelName,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The id of the checkpoint.")],
    *,
    version_name: VersionName = None,
    notes: Notes = None,
    notes_file: NotesFile = None,
    metadata: Metadata = None,
    aliases: Annotated[
        list[str] | None, typer.Option("--alias", metavar="ALIAS", help="An alias that moves to the new version.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Register a checkpoint as the next version of a model. It is kept as long as the version exists."""
    written = {"version_name": version_name, "notes": _notes(notes, notes_file), "metadata": _metadata(metadata)}
    with connect() as client:
        version = client.register_model_version(name, checkpoint, aliases=aliases or (), **written)
    also = f", its {', '.join(aliases)}" if aliases else ""
    line = f"registered version {version.number} of model {name}{also}: checkpoint {version.checkpoint_id}"
    show(version, is_json, lambda: [line])


@app.command()
def versions(
    name: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only those of this model.")] = "",
    checkpoint: Annotated[str, typer.Option(metavar="ID", help="Only versions of this checkpoint.")] = "",
    limit: Limit = 50,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List versions, the newest of each model first."""
    with connect() as client:
        views = client.list_model_versions(name, limit, checkpoint_id=checkpoint)
    now = time.time()
    rows = [_version_row(view, now) for view in views]
    empty = "no versions yet; register one with gangline model register MODEL CHECKPOINT"
    show_table(views, _VERSION_COLUMNS, rows, empty, is_json=is_json, is_wide=is_wide)


@app.command("describe-version")
def describe_version(name: ModelName, version: AnyVersion, is_json: Json = False) -> None:
    """Show a version of a model: its checkpoint, its metrics and its notes."""
    with connect() as client:
        view = client.find_model_version(name, _reference(version))
    show(view, is_json, lambda: _version_lines(view))


@app.command()
def download(
    name: ModelName,
    version: AnyVersion,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder; default: the checkpoint's id.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Fetch the files of a version's checkpoint into a folder."""
    with connect() as client:
        found = client.find_model_version(name, _reference(version)).version
        folder = output or Path(found.checkpoint_id)
        num_bytes = client.download_checkpoint(found.checkpoint_id, folder)
    record = {"version": found.number, "checkpoint_id": found.checkpoint_id, "folder": str(folder.resolve())}
    line = f"version {found.number} of model {name}: {format_bytes(num_bytes)} in {folder.resolve()}"
    show(record | {"num_bytes": num_bytes}, is_json, lambda: [line])


@app.command("edit-version")
def edit_version(
    name: ModelName,
    version: Number,
    *,
    version_name: VersionName = None,
    notes: Notes = None,
    notes_file: NotesFile = None,
    metadata: Metadata = None,
    is_json: Json = False,
) -> None:
    """Change the name, the notes or the metadata of a version."""
    written = {"version_name": version_name, "notes": _notes(notes, notes_file), "metadata": _metadata(metadata)}
    with connect() as client:
        changed = client.edit_model_version(name, version, **written)
    show(changed, is_json, lambda: [f"edited version {version} of model {name}"])


@app.command("delete-version")
def delete_version(name: ModelName, version: Number, is_yes: Yes = False, is_json: Json = False) -> None:
    """Delete a version of a model. Its checkpoint stays until something else deletes it."""
    what = f"version {version} of model {name}"
    confirm_deletion(what, is_yes)
    with connect() as client:
        client.delete_model_version(name, version)
    show({"name": name, "version": version, "state": "DELETED"}, is_json, lambda: [f"deleted {what}"])


@app.command()
def alias(name: ModelName, alias: Alias, version: Number, expected: Expected = None, is_json: Json = False) -> None:
    """Point an alias at a version, from wherever it points now."""
    with connect() as client:
        model = client.set_model_alias(name, alias, version, expected)
    show(model, is_json, lambda: [f"version {version} of model {name} is its {alias}"])


@app.command()
def unalias(name: ModelName, alias: Alias, expected: Expected = None, is_json: Json = False) -> None:
    """Remove an alias; its version stays."""
    with connect() as client:
        model = client.remove_model_alias(name, alias, expected)
    show(model, is_json, lambda: [f"model {name} has no alias {alias}"])


def _reference(version: str) -> int | str:
    """Returns the number, or the alias: no alias is a number. One that is too long for the wire is an alias that does
    not exist."""
    is_number = version.isdecimal() and len(version) < len(str(MOST_ID))
    return int(version) if is_number else version


def _notes(notes: str | None, file: Path | None) -> str | None:
    """Raises GanglineError `model.two_notes`."""
    if file is None:
        return notes
    if notes is not None:
        raise invalid("model.two_notes", "give --notes or --notes-file, not both")
    return read_text(file)


def _metadata(text: str | None) -> Any:
    """Raises GanglineError `document.invalid`."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid("document.invalid", f"--metadata is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("document.invalid", '--metadata is no JSON object; write it as \'{"stage": "trial"}\'')
    return value


def _row(view: ModelView, now: float) -> tuple[object, ...]:
    model = view.model
    return (
        model.name,
        view.newest_version or "-",
        view.num_versions,
        ", ".join(f"{each.name}: {each.version}" for each in model.aliases),
        model.owner,
        view.workspace_name,
        "ARCHIVED" if model.archived else "",
        format_age(model.updated_at or model.created_at, now),
    )


def _version_row(view: ModelVersionView, now: float) -> tuple[object, ...]:
    version = view.version
    return (
        view.model_name,
        version.number,
        ", ".join(view.aliases),
        version.name,
        version.checkpoint_id,
        version.trial_id or "imported",
        version.batches_completed,
        _metrics(view),
        version.owner,
        format_age(version.created_at, now),
    )


def _metrics(view: ModelVersionView) -> str:
    metrics = read_document(view.version.metrics_json)
    shown = metrics.items() if isinstance(metrics, dict) else ()
    return ", ".join(f"{key}: {value:.6g}" if isinstance(value, float) else f"{key}: {value}" for key, value in shown)


def _lines(view: ModelView) -> list[str]:
    model = view.model
    versions = f"{view.num_versions} version{'' if view.num_versions == 1 else 's'}"
    lines = [f"model {model.id} {model.name}{', archived' if model.archived else ''}: {versions}"]
    shown = {
        "description": model.description,
        "owner": model.owner,
        "workspace": view.workspace_name,
        "labels": ", ".join(model.labels),
        "aliases": ", ".join(f"{each.name}: version {each.version}" for each in model.aliases),
        "metadata": "" if model.metadata_json in ("", "{}") else model.metadata_json,
    }
    lines += [f"  {name}: {value}" for name, value in shown.items() if value]
    return [*lines, *(f"  | {line}" for line in model.notes.splitlines())]


def _version_lines(view: ModelVersionView) -> list[str]:
    version = view.version
    lines = [f"version {version.number} of model {view.model_name}{f', {version.name}' if version.name else ''}"]
    source = f"trial {version.trial_id}, experiment {version.experiment_id}" if version.trial_id else "imported"
    shown = {
        "aliases": ", ".join(view.aliases),
        "checkpoint": version.checkpoint_id,
        "from": f"{source}, batch {version.batches_completed}",
        "metrics": _metrics(view),
        "registered by": version.owner,
        "metadata": "" if version.metadata_json in ("", "{}") else version.metadata_json,
    }
    lines += [f"  {name}: {value}" for name, value in shown.items() if value]
    return [*lines, *(f"  | {line}" for line in version.notes.splitlines())]
