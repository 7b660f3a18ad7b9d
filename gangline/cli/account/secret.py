"""Reads passwords and tokens: from a question that does not show them, or from the standard input.

They are no arguments, because other users of the machine can read arguments.
"""

from __future__ import annotations

import os
import sys

import typer

from gangline.cli.output.terminal import can_ask
from gangline.errors import invalid
from gangline.login import TOKEN_VARIABLE


def read_token() -> str:
    """Reads the token. Raises GanglineError `login.no_token`."""
    token = (os.environ.get(TOKEN_VARIABLE, "") or _read("Token")).strip()
    if not token or not token.isascii() or not token.isprintable():
        raise invalid("login.no_token", "there is no token; set GANGLINE_TOKEN, or give it on the standard input")
    return token


def read_password(question: str, *, is_new: bool = False) -> str:
    """Reads a password. is_new: asks twice on a terminal, and checks it. Raises GanglineError `user.password`."""
    password = _read(question, is_new=is_new)
    if not password:
        raise invalid("user.password", "there is no password; answer the question, or give it on the standard input")
    if is_new:
        from gangline.domain.user import check_new_password  # noqa: PLC0415 - few commands need it

        check_new_password(password)
    return password


def _read(question: str, *, is_new: bool = False) -> str:
    """Returns one line without its end; empty where there is none, or where it is no text."""
    try:
        if can_ask():
            return str(typer.prompt(question, hide_input=True, err=True, confirmation_prompt=is_new))
        return sys.stdin.readline().rstrip("\r\n")
    except UnicodeDecodeError:
        return ""
