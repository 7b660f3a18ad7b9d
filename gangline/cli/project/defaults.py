"""The parts that `gangline workspace` and `gangline project` share: options of defaults, deletion, description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.terminal import can_ask, mention
from gangline.errors import invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.experiment import Inheritance

WorkspaceName = Annotated[str, typer.Argument(metavar="WORKSPACE", help="The name of the workspace.")]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="The name of the project.")]
Pool = Annotated[
    str | None, typer.Option("--default-compute-pool", metavar="POOL", help="For resources.resource_pool; '' unsets.")
]
Storage = Annotated[
    str | None,
    typer.Option("--checkpoint-storage-config", metavar="YAML", help="For checkpoint_storage; '' unsets."),
]
StorageFile = Annotated[
    Path | None, typer.Option("--checkpoint-storage-config-file", metavar="FILE", help="The same, from a file.")
]
DefaultTemplate = Annotated[
    str | None, typer.Option("--default-template", metavar="NAME", help="For experiments that name none; '' unsets.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


def storage_of(section: str | None, file: Path | None) -> str | None:
    """Returns the section that one of the two options gives. Raises GanglineError `config.two_storages`."""
    if section is not None and file is not None:
        raise invalid("config.two_storages", "give --checkpoint-storage-config or its file, not both")
    return section if file is None else read_text(file)


def confirm_deletion(what: str, is_yes: bool) -> None:
    """Asks the user. Raises GanglineError `project.unconfirmed` where there is no terminal for the question."""
    if is_yes:
        return
    if not can_ask():
        raise invalid("project.unconfirmed", f"{what} was not deleted: there is no terminal to ask; add --yes")
    if not typer.confirm(f"delete {what}?", err=True):
        mention("nothing was deleted")
        raise typer.Exit(1)


def inherited_lines(inheritance: Inheritance) -> list[str]:
    """Returns what a new experiment of the project inherits, each setting with its source."""
    from gangline.config.merge import describe_merged, merge  # noqa: PLC0415 - loads pydantic

    lines = describe_merged(merge(inheritance.layers, {}))
    if not lines:
        return ["new experiments inherit nothing"]
    return ["new experiments inherit, where their own YAML sets nothing else:", *(f"  {line}" for line in lines)]


def inherit_or_none(client: Client, workspace: str, project: str, *, is_archived: bool) -> Inheritance | None:
    """Returns None for an archived project, into which no experiment goes."""
    return None if is_archived else client.inherit_from(workspace, project)
