"""`gangline group ...`: creates, lists and changes groups of users, which can have roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.shared import Json, add_list, connect, new_group, show
from gangline.errors import not_found

if TYPE_CHECKING:
    from gangline.domain.access import GroupView

app = new_group("Create, list and change groups of users, which can have roles.")

_COLUMNS = (Column("NAME", 9, least=12), Column("MEMBERS", 7), Column("USERS", 4, least=12), Column("AGE", 3))
GroupName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the group.")]
Users = Annotated[list[str], typer.Argument(metavar="USER...", help="The names of the users.")]


@app.command()
def create(
    name: GroupName,
    users: Annotated[list[str] | None, typer.Argument(metavar="[USER...]", help="Its first members.")] = None,
    is_json: Json = False,
) -> None:
    """Create a group; for administrators."""
    with connect() as client:
        _show(client.create_group(name, users or []), "created", is_json)


@app.command()
def delete(name: GroupName, is_json: Json = False) -> None:
    """Delete a group that has no role; for administrators. Its users stay."""
    with connect() as client:
        client.delete_group(name)
    show({"deleted": name}, is_json, lambda: [f"deleted group {name}"])


@app.command()
def add(name: GroupName, users: Users, is_json: Json = False) -> None:
    """Add users to a group; for administrators."""
    with connect() as client:
        _show(client.add_to_group(name, users), "changed", is_json)


@app.command()
def remove(name: GroupName, users: Users, is_json: Json = False) -> None:
    """Remove users from a group; for administrators."""
    with connect() as client:
        _show(client.remove_from_group(name, users), "changed", is_json)


@app.command("show")
def show_group(name: GroupName, is_json: Json = False) -> None:
    """Show the members of a group."""
    with connect() as client:
        groups = client.list_groups()
    found = next((group for group in groups if group.name == name), None)
    if found is None:
        raise not_found("group.not_found", f"there is no group {name!r}; list them with: gangline group list")
    show(found, is_json, lambda: found.members or [f"group {name} has no members"])


def _row(group: GroupView, now: float) -> tuple[object, ...]:
    users = "all users" if group.is_built_in else ", ".join(group.members)
    return group.name, len(group.members), users, format_age(group.created_at, now) if group.created_at else ""


add_list(app, "List groups by name.", lambda client: client.list_groups(), _COLUMNS, _row, empty="no groups")


def _show(group: GroupView, done: str, is_json: bool) -> None:
    members = ", ".join(group.members) or "no members"
    show(group, is_json, lambda: [f"{done} group {group.name}: {members}"])
