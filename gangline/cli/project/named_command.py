"""The commands that `gangline workspace`, `project` and `model` share: create, edit, archive, unarchive and delete.

`add_create` and `add_changes` add them to a group of commands, by the table of what sets the group apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.option_record import spread
from gangline.cli.output.terminal import can_ask, mention
from gangline.cli.shared import Json, connect, show
from gangline.errors import invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.named_kind import NamedKind

WorkspaceName = Annotated[str, typer.Argument(metavar="WORKSPACE", help="The name of the workspace.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="The name of the model.")]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="The name of the project.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


@dataclass(frozen=True)
class Options:
    """The options of a command that creates or edits a record, named as the arguments of the SDK's method."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's method."""
        return asdict(self)


@dataclass(frozen=True)
class Defaults(Options):
    """The options with the settings that experiments inherit. None leaves a setting as it is."""

    resource_pool: Annotated[
        str | None,
        typer.Option("--default-compute-pool", metavar="POOL", help="For resources.resource_pool; '' unsets."),
    ] = None
    checkpoint_storage: Annotated[
        str | None,
        typer.Option("--checkpoint-storage-config", metavar="YAML", help="For checkpoint_storage; '' unsets."),
    ] = None
    storage_file: Annotated[
        Path | None, typer.Option("--checkpoint-storage-config-file", metavar="FILE", help="The same, from a file.")
    ] = None
    template: Annotated[
        str | None,
        typer.Option("--default-template", metavar="NAME", help="For experiments that name none; '' unsets."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of the SDK's method. Raises GanglineError `config.two_storages`."""
        values = asdict(self)
        file = values.pop("storage_file")
        if file is None:
            return values
        if self.checkpoint_storage is not None:
            raise invalid("config.two_storages", "give --checkpoint-storage-config or its file, not both")
        return values | {"checkpoint_storage": read_text(file)}


@dataclass(frozen=True)
class CommandGroup:
    """What sets the commands about one kind of named records apart."""

    kind: NamedKind[Any]
    names: Mapping[str, Any]  # arguments that name one, with their annotations: those of the records that hold it first
    options: type[Options]  # of `create` and `edit`
    new_name: Any  # annotation of the option of `edit` with another name
    helps: Mapping[str, str]  # by command
    deleted_with_it: str = ""  # what a deletion deletes beside it, as a question says it


def add_create(app: typer.Typer, group: CommandGroup) -> None:
    @app.command("create", help=group.helps["create"])
    @spread(names=_names_of(group), options=group.options)
    def create(names: Any, options: Options, is_json: Json = False) -> None:
        _change(group, "create", names, is_json, options.arguments())


def add_changes(app: typer.Typer, group: CommandGroup) -> None:
    @app.command("edit", help=group.helps["edit"])
    @spread(names=_names_of(group), new_name=group.new_name, options=group.options)
    def edit(names: Any, *, new_name: Any = None, options: Options, is_json: Json = False) -> None:
        _change(group, "edit", names, is_json, options.arguments() | {"new_name": new_name})

    @app.command("archive", help=group.helps["archive"])
    @spread(names=_names_of(group))
    def archive(names: Any, is_json: Json = False) -> None:
        _change(group, "archive", names, is_json, {})

    @app.command("unarchive", help=group.helps["unarchive"])
    @spread(names=_names_of(group))
    def unarchive(names: Any, is_json: Json = False) -> None:
        _change(group, "unarchive", names, is_json, {})

    @app.command("delete", help=group.helps["delete"])
    @spread(names=_names_of(group))
    def delete(names: Any, is_yes: Yes = False, is_json: Json = False) -> None:
        *_, name = astuple(names)
        what = f"{group.kind.noun} {name}{_place(group, names)}"
        confirm_deletion(f"{what}{group.deleted_with_it}", is_yes)
        with connect() as client:
            _call(client, group, "delete", names, {})
        show({"name": name, "state": "DELETED"}, is_json, lambda: [f"deleted {what}"])


def _names_of(group: CommandGroup) -> type:
    return make_dataclass("Names", group.names.items())


def _change(group: CommandGroup, verb: str, names: Any, is_json: bool, values: Mapping[str, Any]) -> None:
    with connect() as client:
        record = _call(client, group, verb, names, values)
    done = f"{verb.removesuffix('e')}ed"
    line = f"{done} {group.kind.noun} {record.id} {record.name}{_place(group, names)}"
    show(record, is_json, lambda: [line])


def _call(client: Client, group: CommandGroup, verb: str, names: Any, values: Mapping[str, Any]) -> Any:
    return getattr(client, f"{verb}_{group.kind.noun}")(*astuple(names), **values)


def _place(group: CommandGroup, names: Any) -> str:
    parents = astuple(names)[:-1]
    return f" of {group.kind.parent.noun} {parents[-1]}" if group.kind.parent is not None else ""


def confirm_deletion(what: str, is_yes: bool) -> None:
    """Asks the user. Raises GanglineError `project.unconfirmed` where there is no terminal for the question."""
    if is_yes:
        return
    if not can_ask():
        raise invalid("project.unconfirmed", f"{what} was not deleted: there is no terminal to ask; add --yes")
    if not typer.confirm(f"delete {what}?", err=True):
        mention("nothing was deleted")
        raise typer.Exit(1)
