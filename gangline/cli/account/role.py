"""`gangline role ...`: gives roles to users and groups, takes and lists them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.shared import Json, Wide, connect, new_group, show, show_table

if TYPE_CHECKING:
    from gangline.domain.access import RoleView

app = new_group("Give roles to users and groups, take and list them.")

_COLUMNS = (Column("WORKSPACE", 9, least=12), Column("ROLE", 8), Column("SUBJECT", 7, least=12))
User = Annotated[str, typer.Option("--user", metavar="NAME", help="The user.")]
Group = Annotated[str, typer.Option("--group", metavar="NAME", help="The group, in place of a user.")]
Workspace = Annotated[
    str, typer.Option("--workspace", "-w", metavar="NAME", help="The workspace; default: the whole cluster.")
]


class RoleName(StrEnum):
    """The roles as users type them."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"


@app.command()
def assign(
    role: Annotated[RoleName, typer.Argument(help="viewer, editor or admin.", case_sensitive=False)],
    *,
    user: User = "",
    group: Group = "",
    workspace: Workspace = "",
    is_json: Json = False,
) -> None:
    """Give a role to a user or to a group, in place of the one that it had there."""
    with connect() as client:
        roles = client.assign_role(role, user=user, group=group, workspace=workspace)
    _show(roles, f"{_subject(user, group)} is {role} {_place(workspace)}", is_json)


@app.command()
def remove(
    *,
    user: User = "",
    group: Group = "",
    workspace: Workspace = "",
    is_json: Json = False,
) -> None:
    """Take the role of a user or of a group. Other roles of the same users stay."""
    with connect() as client:
        roles = client.remove_role(user=user, group=group, workspace=workspace)
    _show(roles, f"{_subject(user, group)} has no role of its own {_place(workspace)}", is_json)


@app.command("list")
@app.command("ls", hidden=True)
def list_roles(
    *,
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", metavar="NAME", help="Only those for this workspace.")
    ] = "",
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List roles: those for the cluster, then those for each workspace that you see."""
    with connect() as client:
        roles = client.list_roles(workspace)
    rows = [(role.workspace or "(the cluster)", role.role, role.subject) for role in roles]
    show_table(roles, _COLUMNS, rows, "no roles", is_json=is_json, is_wide=is_wide)


def _show(roles: Sequence[RoleView], done: str, is_json: bool) -> None:
    show(roles, is_json, lambda: [done])


def _subject(user: str, group: str) -> str:
    return f"group {group}" if group else user


def _place(workspace: str) -> str:
    return f"in workspace {workspace}" if workspace else "for the cluster"
