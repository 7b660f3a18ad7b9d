"""Opens an address that signs a user in, in a browser of this machine."""

from __future__ import annotations

import webbrowser
from html import escape

from gangline.errors import GanglineError
from gangline.login import home, write_private


def open_privately(address: str) -> bool:
    """Opens a file that leads to the address, and returns whether there is a browser. All accounts of this machine can
    read the words with which a browser is started, so a key or a token is not among them. Raises GanglineError
    `open.unwritable`."""
    path = home() / "open.html"
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(address)}">\n'
    try:
        write_private(path, text)
    except OSError as failure:
        raise GanglineError("open.unwritable", f"cannot write {path}: {failure.strerror}; open {address}") from failure
    return webbrowser.open(path.absolute().as_uri())
