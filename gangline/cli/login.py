"""`gangline login`: stores the gateways and the token of a cluster, so that no shell has to set them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gangline.cli.output.terminal import can_ask, say
from gangline.cli.shared import connect, warn
from gangline.errors import invalid


def login(
    addresses: Annotated[
        str, typer.Argument(metavar="ADDRESSES", help="The gateways, as gpu1:8081,gpu2:8081; default port: 8081.")
    ],
) -> None:
    """Log in to a cluster: later commands use one of these gateways, and another one when that one is away.

    The token comes from GANGLINE_TOKEN, from a question, or from the standard input. It is stored only after a gateway
    has accepted it.
    """
    with connect(address=addresses, token=_read_token()) as client:
        # This follows `connect`, which must run before the first import of grpc.
        from gangline.client.login import load_login, save_login  # noqa: PLC0415

        client.get_cluster()
        before, path = load_login(), save_login(client.login)
        gateways = ", ".join(client.login.addresses)
    if before is not None and before.data_directory:
        stop = f"gangline down --data-dir {before.data_directory}"
        warn(f"commands no longer use the local cluster in {before.data_directory}; stop it with: {stop}")
    if os.environ.get("GANGLINE_GATEWAY"):
        warn("GANGLINE_GATEWAY is set in this shell, and commands use it instead of the login; unset it")
    say([f"logged in to {gateways}; the login is in {path}"])


def _read_token() -> str:
    """Reads the token. It is no argument, because other users of the machine can read arguments. Raises GanglineError
    `login.no_token`."""
    token = os.environ.get("GANGLINE_TOKEN", "")
    try:
        if not token:
            token = typer.prompt("Token", hide_input=True, err=True) if can_ask() else sys.stdin.readline()
    except UnicodeDecodeError:
        token = ""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise invalid("login.no_token", "there is no token; set GANGLINE_TOKEN, or give it on the standard input")
    return token
