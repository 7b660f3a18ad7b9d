"""Finds the gateways to talk to, and the token.

The order is: the caller's arguments, the environment (GANGLINE_GATEWAY, GANGLINE_TOKEN, GANGLINE_CA_FILE), and the
login file that `gangline up` and `gangline login` write below GANGLINE_HOME (default ~/.config/gangline). Only their
owner can read files with tokens.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gangline.errors import ErrorKind, GanglineError
from gangline.gateway_address import parse_addresses

ADDRESS_VARIABLE = "GANGLINE_GATEWAY"
TOKEN_VARIABLE = "GANGLINE_TOKEN"  # noqa: S105 - the name of a variable, no token
CA_VARIABLE = "GANGLINE_CA_FILE"
HOME_VARIABLE = "GANGLINE_HOME"
# How the token of a session begins that a password has opened.
SESSION_PREFIX = "login:"
RETRY_VARIABLE = "GANGLINE_RETRY_SECONDS"


@dataclass(frozen=True, slots=True)
class Login:
    """The fields are those of the file. A file with one address and no authority is the same for every version of
    Gangline."""

    address: str  # "host:port" of a gateway's gRPC server, or several with commas
    token: str
    http_address: str = ""
    data_directory: str = ""  # data directory of the local cluster to which it belongs; empty for other clusters
    # The file with the authorities that sign for the gateways, or "system" for those that this machine trusts. Empty
    # for gateways without TLS.
    ca_file: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Returns the addresses of all gateways. Raises GanglineError `login.bad_address`."""
        return parse_addresses(self.address, "the login")

    @property
    def http_scheme(self) -> str:
        return "https" if self.ca_file else "http"


def home() -> Path:
    """Returns the folder of this user's own files of Gangline."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured) if configured else Path.home() / ".config" / "gangline"


def name_home() -> str:
    """Returns the setting that a shell needs to find this folder, for messages; empty where it is the default one."""
    configured = os.environ.get(HOME_VARIABLE)
    return f"{HOME_VARIABLE}={configured}" if configured else ""


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


def find_login(address: str | None = None, token: str | None = None, ca_file: str | None = None) -> Login:
    """Returns the login. address: one gateway, or several with commas. ca_file: as in Login. Raises GanglineError
    `login.none` when no source names a gateway, `login.no_token` without a token, and `login.bad_address`."""
    source = "the address"
    if not address:
        address, source = os.environ.get(ADDRESS_VARIABLE), ADDRESS_VARIABLE
    token = token or os.environ.get(TOKEN_VARIABLE)
    ca_file = ca_file or os.environ.get(CA_VARIABLE)
    saved = load_login()
    if not address:
        if saved is None:
            raise GanglineError(
                "login.none",
                "no cluster is known; start one here with `gangline up`, log in with `gangline login`, or set "
                f"{ADDRESS_VARIABLE} and {TOKEN_VARIABLE}",
            )
        return replace(saved, token=token or saved.token, ca_file=ca_file or saved.ca_file)
    addresses = parse_addresses(address, source)
    address = ",".join(addresses)
    is_saved = saved is not None and set(addresses) <= set(saved.addresses)
    if saved is not None and is_saved and not ca_file:
        ca_file = saved.ca_file
    if token:
        return Login(address, token, ca_file=ca_file or "")
    # The saved token is sent only to gateways to which the user has logged in.
    if saved is not None and is_saved:
        is_same = set(addresses) == set(saved.addresses) and ca_file in (None, saved.ca_file)
        return saved if is_same else Login(address, saved.token, ca_file=ca_file or "")
    raise GanglineError(
        "login.no_token",
        f"no token for {say_gateways(addresses)}; set {TOKEN_VARIABLE}, or log in with `gangline login {address}`",
        ErrorKind.UNAUTHENTICATED,
    )


def say_gateways(addresses: Sequence[str]) -> str:
    """Returns the noun for these gateways in messages."""
    return f"the gateway at {addresses[0]}" if len(addresses) == 1 else f"the gateways at {', '.join(addresses)}"


def load_login() -> Login | None:
    """Returns the login that `save_login` wrote; None without a file. Raises GanglineError `login.broken_file`."""
    path = _path()
    try:
        login = Login(**json.loads(path.read_text("utf-8")))
        return replace(login, address=",".join(parse_addresses(login.address, "it")))
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise GanglineError("login.broken_file", f"cannot use {path}: {failure.strerror}; delete it") from failure
    except (ValueError, TypeError, AttributeError, GanglineError) as failure:
        raise GanglineError("login.broken_file", f"cannot use {path}: it is no login file; delete it") from failure


def save_login(login: Login) -> Path:
    """Writes the file and returns its path. Raises GanglineError `login.unwritable`."""
    path = _path()
    try:
        record = asdict(login)
        if not login.ca_file:
            # Earlier versions know no such field.
            del record["ca_file"]
        write_private(path, json.dumps(record, indent=1) + "\n")
    except OSError as failure:
        text = f"cannot write the login to {path}: {failure.strerror}; set {HOME_VARIABLE} to another folder"
        raise GanglineError("login.unwritable", text) from failure
    return path


def forget_login(data_directory: str) -> bool:
    """Removes the file if it belongs to the local cluster of that directory. Returns whether it did."""
    saved = load_login()
    if saved is None or saved.data_directory != data_directory:
        return False
    _path().unlink(missing_ok=True)
    return True


def remove_login(token: str) -> bool:
    """Removes the file if it has this token. Returns whether it did."""
    saved = load_login()
    if saved is None or saved.token != token:
        return False
    _path().unlink(missing_ok=True)
    return True


def is_session(token: str) -> bool:
    """Returns whether a password has opened this token."""
    return token.startswith(SESSION_PREFIX)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all. Raises OSError, and leaves no part then."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # The file has its mode before it has any text, so no other account can read it meanwhile.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError:
        # A full disk takes the name of the part and none of its text.
        part.unlink(missing_ok=True)
        raise


def _path() -> Path:
    return home() / "login.json"
