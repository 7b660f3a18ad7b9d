"""`gangline user ...`: creates, lists and changes users, and their passwords."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.account.secret import read_password
from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age
from gangline.cli.shared import Json, add_list, connect, new_group, show
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.access import Access
    from gangline.domain.user import UserView

app = new_group("Create, list and change users, and their passwords.")

_COLUMNS = (
    Column("ID"),
    Column("NAME", 9, least=12),
    Column("DISPLAY NAME", 4, least=8),
    Column("ADMIN", 7),
    Column("STATE", 8),
    Column("LOGIN", 5),
    Column("AGE", 3),
)
_MAY = {
    "VIEWER": "sees everything in it",
    "EDITOR": "sees everything in it, and creates and changes what is this user's own",
    "ADMIN": "changes everything in it, and who has which role",
}
UserName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")]
DisplayName = Annotated[str | None, typer.Option("--display-name", metavar="TEXT", help="The name that is shown.")]


@app.command()
def create(
    name: UserName,
    *,
    is_admin: Annotated[bool, typer.Option("--admin", help="Make the user an administrator.")] = False,
    display_name: DisplayName = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="The user has tokens only; see gangline token create.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Create a user; for administrators. The password comes from a question, or from the standard input."""
    password = None if no_password else read_password(f"Password of {name}", is_new=True)
    with connect() as client:
        user = client.create_user(name, password, is_admin=is_admin, display_name=display_name or "")
    _show(user, "created", is_json)


def _row(user: UserView, now: float) -> tuple[object, ...]:
    return (
        user.id,
        user.name,
        user.display_name,
        "yes" if user.is_admin else "",
        "ACTIVE" if user.is_active else "DEACTIVATED",
        "password" if user.has_password else "token",
        format_age(user.created_at, now) if user.created_at else "",
    )


add_list(app, "List users, the oldest first.", lambda client: client.list_users(), _COLUMNS, _row, empty="no users")


@app.command()
def whoami(
    *,
    with_rights: Annotated[bool, typer.Option("--can", help="Show also what this user may do, by workspace.")] = False,
    is_json: Json = False,
) -> None:
    """Show the user as whom these commands run."""
    with connect() as client:
        user = client.who_am_i()
        access = client.get_access() if with_rights else None
    lines = [f"{user.name}{', an administrator' if user.is_admin else ''}"]
    if access is None:
        show(user, is_json, lambda: lines)
    else:
        show({"user": user, "access": access}, is_json, lambda: [*lines, *_describe_access(access)])


def _describe_access(access: Access) -> list[str]:
    lines = [f"groups: {', '.join(access.groups)}"]
    if access.is_admin:
        lines.append("changes users, groups, roles and agents, and everything in all workspaces")
    elif access.is_open:
        lines.append("operates the work of others too, as long as no role for the cluster was changed")
    lines += [f"{right.workspace}: {right.role.lower()}, who {_MAY[right.role]}" for right in access.workspaces]
    return lines if access.is_admin or access.workspaces else [*lines, "sees no workspace; ask an administrator"]


@app.command()
def activate(name: UserName, is_json: Json = False) -> None:
    """Let a user act again; for administrators."""
    with connect() as client:
        _show(client.activate_user(name), "activated", is_json)


@app.command()
def deactivate(
    name: UserName,
    *,
    kill_experiments: Annotated[
        bool, typer.Option("--kill-experiments", help="Also kill the user's experiments and tasks.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Refuse all that a user does from now on; for administrators. Open streams and connections end too."""
    with connect() as client:
        _show(client.deactivate_user(name, kill_experiments=kill_experiments), "deactivated", is_json)


@app.command("change-password")
def change_password(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The user; default: yourself.")] = "",
    is_json: Json = False,
) -> None:
    """Change a password: your own, or as an administrator that of another user. It ends the user's other sessions."""
    with connect() as client:
        own_name = client.who_am_i().name
        name = name or own_name
        password = read_password(f"New password of {name}", is_new=True)
        user = client.change_password(password, name)
        if name == own_name:
            _log_in_again(client, name, password)
    _show(user, "changed the password of", is_json)


@app.command()
def edit(
    name: UserName,
    *,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")] = None,
    display_name: DisplayName = None,
    is_admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Whether the user is an administrator.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Change a user. Only the displayed name is for everyone; all else is for administrators."""
    if (new_name, display_name, is_admin) == (None, None, None):
        raise invalid("cli.nothing_to_change", "there is nothing to change; give --name, --display-name or --admin")
    with connect() as client:
        user = client.edit_user(name, new_name=new_name, display_name=display_name, is_admin=is_admin)
    _show(user, "edited", is_json)


@app.command()
def rename(
    name: UserName,
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", help="The new name.")],
    is_json: Json = False,
) -> None:
    """Give a user who owns nothing another name, as edit --name; for administrators."""
    edit(name, new_name=new_name, is_json=is_json)


@app.command()
def logout(
    is_json: Json = False,
    is_everywhere: Annotated[
        bool, typer.Option("--everywhere", help="End all your sessions, in browsers too; tokens stay.")
    ] = False,
) -> None:
    """End the session that gangline login --user has opened, and forget the login."""
    from gangline.login import remove_login  # noqa: PLC0415 - one command needs it

    with connect() as client:
        client.log_out(is_everywhere=is_everywhere)
        is_removed = remove_login(client.login.token)
    where = "and the login is removed" if is_removed else "the login file is of another login, and stays"
    show({"is_login_removed": is_removed}, is_json, lambda: [f"logged out; {where}"])


def _log_in_again(client: Client, name: str, password: str) -> None:
    """Replaces the session in the login file, which has ended with the old password."""
    from gangline.login import is_session, load_login, save_login  # noqa: PLC0415 - one command needs it

    saved = load_login()
    if saved is not None and saved.token == client.login.token and is_session(saved.token):
        save_login(replace(saved, token=client.log_in(name, password).token))


def _show(user: UserView, done: str, is_json: bool) -> None:
    show(user, is_json, lambda: [f"{done} user {user.name}"])
