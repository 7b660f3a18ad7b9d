"""Tokens: the cluster's, the users', one for each allocation, one for each session that a password has opened, and
keys that open one session each.

Owns how tokens are made, hashed and checked. The tokens of an allocation, of a session and those that users make are
derived from the cluster token, so they are stored nowhere. Every holder of the cluster token can check the first two,
and their own holder can act for this one allocation, or this one user, only. Never logs a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path

from gangline.domain.user import hash_password
from gangline.errors import GanglineError, invalid, unauthenticated
from services.common.access.secret_file import read_secret

_ALLOCATION_PREFIX = "alloc"
_ALLOCATION_PURPOSE = b"gangline allocation token v1:"
_DRAIN_PREFIX = "drain"
_DRAIN_PURPOSE = b"gangline drain token v1:"
# By the beginning of the token: sessions of Determined's client, and those of our own.
_DETERMINED_SESSION, _OWN_SESSION = "session", "login"
_SESSIONS = (_DETERMINED_SESSION, _OWN_SESSION)
# A key is no token: it opens a session, once.
_KEY = "key"
_PURPOSES = {
    _DETERMINED_SESSION: b"gangline session token v1:",
    _OWN_SESSION: b"gangline own session token v1:",
    _KEY: b"gangline one-time key v1:",
}
_DETERMINED_TOKEN, _OWN_TOKEN = "det_", "gangline_"
_ACCESS_PURPOSE = b"gangline access token v1:"
# Of a session or a key, behind the last colon.
_NONCE_BYTES, _SIGNATURE_DIGITS = 8, 64
_MIN_TOKEN_LENGTH = 16


def load_token(path: Path | str) -> str:
    """Reads the token in a file, without the white space around it. Raises GanglineError `security.no_token_file` or
    `security.bad_token_file`."""
    try:
        token = read_secret(Path(path)).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("security.no_token_file", f"cannot read the token file {path}: {_reason(error)}") from error
    if len(token) < _MIN_TOKEN_LENGTH or any(character.isspace() for character in token):
        raise invalid(
            "security.bad_token_file",
            f"{path} holds no token of {_MIN_TOKEN_LENGTH} characters or more; write one line of random text into it",
        )
    return token


def hash_token(token: str) -> str:
    """Returns the stored form of a user's token. Tokens are random, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_same_token(left: str, right: str) -> bool:
    """Compares in a time that does not depend on how much is equal."""
    return hmac.compare_digest(left.encode(), right.encode())


def allocation_token(cluster_token: str, allocation_id: str) -> str:
    """Returns the token that the runners of an allocation present to the scheduler and the gateway."""
    return f"{_ALLOCATION_PREFIX}:{allocation_id}:{_sign(cluster_token, allocation_id)}"


def is_allocation_token(token: str) -> bool:
    """Returns whether the token claims to be an allocation's; `check_allocation_token` verifies the claim."""
    return token.startswith(_ALLOCATION_PREFIX + ":")


def check_allocation_token(cluster_token: str, token: str) -> str:
    """Returns the allocation id that the token belongs to. Raises GanglineError `security.bad_allocation_token`."""
    prefix, _, rest = token.partition(":")
    allocation_id, _, signature = rest.rpartition(":")
    is_ours = is_same_token(signature, _sign(cluster_token, allocation_id))
    if prefix != _ALLOCATION_PREFIX or not allocation_id or not is_ours:
        raise bad_allocation_token()
    return allocation_id


def bad_allocation_token() -> GanglineError:
    return unauthenticated(
        "security.bad_allocation_token",
        "this is no token of an allocation of this cluster; was the cluster token changed?",
    )


def drain_token(cluster_token: str, agent_id: str) -> str:
    """Returns the token under which the records of ended attempts are delivered from the host of this agent."""
    return f"{_DRAIN_PREFIX}:{agent_id}:{_sign(cluster_token, agent_id, _DRAIN_PURPOSE)}"


def is_drain_token(token: str) -> bool:
    """Returns whether the token claims to be an agent's for draining; `check_drain_token` verifies the claim."""
    return token.startswith(_DRAIN_PREFIX + ":")


def check_drain_token(cluster_token: str, token: str) -> str:
    """Returns the id of the agent. Raises GanglineError `security.bad_drain_token`."""
    agent_id, _, signature = token.removeprefix(_DRAIN_PREFIX + ":").rpartition(":")
    if not agent_id or not is_same_token(signature, _sign(cluster_token, agent_id, _DRAIN_PURPOSE)):
        raise unauthenticated(
            "security.bad_drain_token", "this is no token of an agent of this cluster; was the cluster token changed?"
        )
    return agent_id


def as_password(token: str) -> str:
    """Returns what a client sends when a user gives the token as a password."""
    return hash_password(token)


def access_token(cluster_token: str, token_id: int, request_id: str, *, is_determined: bool) -> str:
    """Returns the token that a request of a user has made; a repeated request gets the same one.

    is_determined: whether it is for the client of Determined, to whose API the gateway sends requests with it.
    """
    message = _ACCESS_PURPOSE + f"{token_id}:{request_id}".encode()
    digest = hmac.new(cluster_token.encode(), message, hashlib.sha256).digest()
    prefix = _DETERMINED_TOKEN if is_determined else _OWN_TOKEN
    return prefix + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def is_of_determined(token: str) -> bool:
    """Returns whether the token was given to a client of Determined, as a session or by its `token create`."""
    return token.startswith((_DETERMINED_SESSION + ":", _DETERMINED_TOKEN))


def session_token(cluster_token: str, user: str, login_sha256: str, ends_at: int, *, is_determined: bool = True) -> str:
    """Returns the token of a session of a user who has logged in. It ends with the secret of the login, too.

    login_sha256: a hash of that secret. ends_at: seconds since 1970.
    """
    kind = _DETERMINED_SESSION if is_determined else _OWN_SESSION
    return _signed(kind, cluster_token, user, login_sha256, ends_at=ends_at, nonce=secrets.token_hex(_NONCE_BYTES))


def is_session_token(token: str) -> bool:
    """Returns whether the token claims to be a session's."""
    return token.partition(":")[0] in _SESSIONS and ":" in token


def user_of_session(token: str) -> str:
    """Returns the user whose session the token claims to be; `check_session_token` verifies the claim."""
    return token.partition(":")[2].partition(":")[2].rpartition(":")[0]


def check_session_token(cluster_token: str, token: str, login_sha256: str, now: float) -> int:
    """Verifies the claim. Returns when the session ends, in seconds since 1970. Raises GanglineError `auth.session`."""
    end = _end_of_signed(cluster_token, token, login_sha256, now) if is_session_token(token) else None
    if end is None:
        raise session_over()
    return end


def one_time_key(cluster_token: str, user: str, login_sha256: str, ends_at: int, session_ends_at: int) -> str:
    """Returns a key with which a browser opens one session of a user. It ends with the secret of the user's login, too.

    login_sha256: a hash of that secret. ends_at, session_ends_at: of the key, and of the session at the latest, in
    seconds since 1970.
    """
    holder = f"{session_ends_at}:{user}"
    return _signed(_KEY, cluster_token, holder, login_sha256, ends_at=ends_at, nonce=secrets.token_hex(_NONCE_BYTES))


def user_of_key(key: str) -> str:
    """Returns the user whose key it claims to be; `check_one_time_key` verifies the claim."""
    return user_of_session(key).partition(":")[2]


def check_one_time_key(cluster_token: str, key: str, login_sha256: str, now: float) -> tuple[int, int]:
    """Returns when the key ends, and when its session ends at the latest, in seconds since 1970. Whether it was used
    already is not in it. Raises GanglineError `auth.key`."""
    end = _end_of_signed(cluster_token, key, login_sha256, now) if key.startswith(_KEY + ":") else None
    if end is None:
        raise key_over()
    return end, int(user_of_session(key).partition(":")[0])


def key_over() -> GanglineError:
    return unauthenticated(
        "auth.key", "this address was used already or has expired; get another one with: gangline open"
    )


def _end_of_signed(cluster_token: str, token: str, login_sha256: str, now: float) -> int | None:
    """Returns when a token of this form ends; None for one that has ended or was not signed here."""
    kind, _, rest = token.partition(":")
    ends_at = rest.partition(":")[0]
    if ends_at.isdecimal() and ends_at.isascii() and len(ends_at) < _MIN_TOKEN_LENGTH and now < int(ends_at):
        # Sessions that earlier versions opened have a signature alone.
        nonce = token.rpartition(":")[2][:-_SIGNATURE_DIGITS]
        holder = user_of_session(token)
        expected = _signed(kind, cluster_token, holder, login_sha256, ends_at=int(ends_at), nonce=nonce)
        if login_sha256 and is_same_token(token, expected):
            return int(ends_at)
    return None


def session_over() -> GanglineError:
    return unauthenticated("auth.session", "this session has ended, or is none of this cluster; log in again")


def _signed(kind: str, cluster_token: str, holder: str, login_sha256: str, *, ends_at: int, nonce: str) -> str:
    """Returns a token. nonce: sets those of one second apart, so that one of them ends alone."""
    text = f"{ends_at}:{login_sha256}:{holder}" + (f":{nonce}" if nonce else "")
    signature = hmac.new(cluster_token.encode(), _PURPOSES[kind] + text.encode(), hashlib.sha256).hexdigest()
    return f"{kind}:{ends_at}:{holder}:{nonce}{signature}"


def _sign(cluster_token: str, holder_id: str, purpose: bytes = _ALLOCATION_PURPOSE) -> str:
    message = purpose + holder_id.encode()
    return hmac.new(cluster_token.encode(), message, hashlib.sha256).hexdigest()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is not text"
