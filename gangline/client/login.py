"""Finds the gateway to talk to, and the token.

The order is: the caller's arguments, the environment (GANGLINE_GATEWAY, GANGLINE_TOKEN), and the login file that
`gangline up` writes below GANGLINE_HOME (default ~/.config/gangline). Only their owner can read files with tokens.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from gangline.errors import ErrorKind, GanglineError

ADDRESS_VARIABLE = "GANGLINE_GATEWAY"
TOKEN_VARIABLE = "GANGLINE_TOKEN"  # noqa: S105 - the name of a variable, no token
HOME_VARIABLE = "GANGLINE_HOME"
RETRY_VARIABLE = "GANGLINE_RETRY_SECONDS"
DEFAULT_PORT = 8081


@dataclass(frozen=True, slots=True)
class Login:
    """address: "host:port" of a gateway's gRPC server. data_directory: of the local cluster to which it belongs."""

    address: str
    token: str
    http_address: str = ""
    data_directory: str = ""


def home() -> Path:
    """Returns the folder of this user's own files of Gangline."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured) if configured else Path.home() / ".config" / "gangline"


def find_retry_seconds() -> float | None:
    """Returns the environment's limit for retries of a call; None without one. Raises GanglineError
    `login.retry_seconds`."""
    text = os.environ.get(RETRY_VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise GanglineError("login.retry_seconds", f"{RETRY_VARIABLE} is {text!r}; give a number of seconds, 0 or more")
    return seconds


def find_login(address: str | None = None, token: str | None = None) -> Login:
    """Returns the login. Raises GanglineError `login.none` when no source names a gateway, `login.no_token` without a
    token."""
    address = address or os.environ.get(ADDRESS_VARIABLE)
    token = token or os.environ.get(TOKEN_VARIABLE)
    saved = load_login()
    if address is None and saved is None:
        raise GanglineError(
            "login.none",
            f"no cluster is known; start one here with `gangline up`, or set {ADDRESS_VARIABLE} and {TOKEN_VARIABLE}",
        )
    if address is None:
        assert saved is not None
        return Login(saved.address, token or saved.token, saved.http_address, saved.data_directory)
    address = address if ":" in address else f"{address}:{DEFAULT_PORT}"
    if token is None and saved is not None and saved.address == address:
        return saved
    if token is None:
        raise GanglineError(
            "login.no_token", f"no token for the gateway at {address}; set {TOKEN_VARIABLE}", ErrorKind.UNAUTHENTICATED
        )
    return Login(address, token)


def load_login() -> Login | None:
    """Returns the login that `save_login` wrote; None without a file. Raises GanglineError `login.broken_file`."""
    path = _path()
    try:
        return Login(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise GanglineError("login.broken_file", f"cannot use {path}: {failure.strerror}; delete it") from failure
    except (ValueError, TypeError) as failure:
        raise GanglineError("login.broken_file", f"cannot use {path}: it is no login file; delete it") from failure


def save_login(login: Login) -> Path:
    write_private(_path(), json.dumps(asdict(login), indent=1) + "\n")
    return _path()


def forget_login(data_directory: str) -> None:
    """Removes the file if it belongs to the local cluster of that directory."""
    saved = load_login()
    if saved is not None and saved.data_directory == data_directory:
        _path().unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    # The file has its mode before it has any text, so no other account can read it meanwhile.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)


def _path() -> Path:
    return home() / "login.json"
