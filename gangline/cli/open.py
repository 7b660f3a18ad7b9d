"""`gangline open`: prints an address of the page that signs the user in once, and opens it in a browser."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from gangline.cli.output.terminal import say
from gangline.cli.shared import Json, connect, show
from gangline.errors import GanglineError, invalid

# By the word of the command line: the first part of the address.
_KINDS = {"experiment": "experiments", "trial": "trials"}


def open_page(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="experiment or trial; default: the first page.")] = "",
    number: Annotated[str, typer.Argument(metavar="[ID]", help="Of the experiment or the trial.")] = "",
    *,
    at: Annotated[
        str, typer.Option("--at", metavar="URL", help="Where your browser reaches the gateway, if not at its address.")
    ] = "",
    only_print: Annotated[bool, typer.Option("--print", help="Print the address, and open no browser.")] = False,
    is_json: Json = False,
) -> None:
    """Open the page in a browser, signed in. The address works once, within 10 minutes."""
    place = _place_of(kind, number)
    with connect() as client:
        login, key = client.login, client.create_key()
    found = login.http_address or next(iter(key.http_addresses), "")
    if not at and not found:
        raise GanglineError("open.no_gateway", "no gateway tells its HTTP address; give it: gangline open --at URL")
    address = enter_address(at or f"{login.http_scheme}://{found}", key.key, place)
    show({"address": address, "ends_at": key.ends_at}, is_json, lambda: [address])
    if only_print or is_json:
        return
    from gangline.cli.browser import open_privately  # noqa: PLC0415 - `up` needs none of it

    if not open_privately(address):
        say(["no browser could be opened here; open the address yourself, within 10 minutes"])


def enter_address(gateway: str, key: str, place: str = "") -> str:
    """Returns the address that signs a browser in. The key is behind `#`, which browsers send to no server. gateway:
    its URL. place: the path of the page to show then."""
    address = f"{gateway.rstrip('/')}/enter#key={quote(key, safe=':')}"
    return f"{address}&to={quote(place, safe='/')}" if place else address


def _place_of(kind: str, number: str) -> str:
    if not kind:
        return ""
    if kind not in _KINDS or not number:
        raise invalid("open.place", "name what to open as `gangline open experiment 5` or `gangline open trial 5.1`")
    return f"/{_KINDS[kind]}/{quote(number, safe='')}"
