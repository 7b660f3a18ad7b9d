"""`gangline token ...`: makes, lists and revokes tokens."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.shared import Json, Wide, connect, format_instant, new_group, show, show_table

app = new_group("Make, list and revoke tokens, which programs use in place of a password.")

_COLUMNS = (
    Column("ID"),
    Column("USER", 8, least=8),
    Column("NAME", 9, least=12),
    Column("STATE", 7),
    Column("CREATED", 3),
    Column("EXPIRES", 5),
)
_DAY_SECONDS = 86400.0


@app.command()
def create(
    *,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="What the token is for.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The user; default: yourself.")] = "",
    days: Annotated[
        int, typer.Option("--days", help="How long it holds; -1: until it is revoked.", min=-1, max=36500)
    ] = 30,
    is_json: Json = False,
) -> None:
    """Make a token. It is shown this once; use it as GANGLINE_TOKEN, or with gangline login."""
    with connect() as client:
        token, secret = client.create_token(name, user, lifespan_seconds=days * _DAY_SECONDS)
    show({"token": token, "secret": secret}, is_json, lambda: [secret])


@app.command("list")
@app.command("ls", hidden=True)
def list_tokens(
    *,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Only those of this user.")] = "",
    with_ended: Annotated[bool, typer.Option("--all", help="Revoked and expired ones, too.")] = False,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List your tokens, the newest first; as an administrator those of all users."""
    with connect() as client:
        tokens = client.list_tokens(user, with_ended=with_ended)
    now = time.time()
    rows = [
        (
            token.id,
            token.user_name,
            token.name,
            token.state(now).upper(),
            format_instant(token.created_at),
            format_instant(token.expires_at) if token.expires_at else "never",
        )
        for token in tokens
    ]
    empty = "no tokens yet; make one with gangline token create"
    show_table(tokens, _COLUMNS, rows, empty, is_json=is_json, is_wide=is_wide)


@app.command()
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="The number of the token.", min=1)],
    is_json: Json = False,
) -> None:
    """End a token of yours; administrators end any."""
    with connect() as client:
        token = client.revoke_token(token_id)
    show(token, is_json, lambda: [f"revoked token {token.id} of {token.user_name}"])
