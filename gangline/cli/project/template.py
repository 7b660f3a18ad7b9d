"""`gangline template ...`: settings that experiments share, merged under their own configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.shared import Json, add_list, connect, new_group, show
from gangline.domain.settled.reading import load_document
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.domain.experiment import Template

app = new_group("Set, list and remove templates: settings that experiments share.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the template.")]

_COLUMNS = (Column("NAME", 9, least=12), Column("OWNER", 8, least=8), Column("KEYS", 5, least=12), Column("CHANGED", 3))


@app.command("set")
@app.command("create", hidden=True)
def set_template(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A YAML file with settings of an experiment.")],
    is_json: Json = False,
) -> None:
    """Create a template, or replace its settings. Experiments that were made from it stay as they are."""
    text = read_text(file)
    with connect() as client:
        template = client.set_template(name, text)
    hint = f"use it: gangline experiment create --template {shlex.quote(name)} FILE"
    show(template, is_json, lambda: [f"set template {name}", hint])


def _row(entry: Template, now: float) -> tuple[object, ...]:
    return (entry.name, entry.owner, ", ".join(load_document(entry.config_json)), format_age(entry.updated_at, now))


add_list(
    app,
    "List templates by name.",
    lambda client: client.list_templates(),
    _COLUMNS,
    _row,
    empty="no templates yet; set one with gangline template set",
)


@app.command()
def describe(name: Name, is_json: Json = False) -> None:
    """Print the settings of a template as YAML."""
    import yaml  # noqa: PLC0415 - one command needs it

    with connect() as client:
        template = client.find_template(name)
    values = load_document(template.config_json)
    show(template, is_json, lambda: yaml.safe_dump(values, sort_keys=False, allow_unicode=True).splitlines())


@app.command()
@app.command("rm", hidden=True)
def remove(name: Name, is_json: Json = False) -> None:
    """Remove a template. Experiments that were made from it stay as they are."""
    with connect() as client:
        client.remove_template(name)
    show({"name": name, "state": "REMOVED"}, is_json, lambda: [f"removed template {name}"])
