"""Classifies a failed call to etcd: move to another endpoint, log in again, wait, or report an error.

Owns the reading of grpc's status and of etcd's own texts. It decides nothing about time and retries nothing;
`session.py` and `stream.py` act on the result.
"""

from __future__ import annotations

import re
from enum import Enum

import grpc

from gangline.errors import Effect, ErrorKind, GanglineError
from gangline.protocol import transport_fault
from services.common.etcd.record import Compacted

_RETRIED_STATUS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    # grpc.aio answers an operation on a dying connection with "Internal error from Core" now and then.
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
}
# Texts of etcd that mean that the token must be renewed.
_TOKEN_TEXTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
# Texts of etcd that no retry can cure, each with the error code and message for the operator.
_PEOPLE = (
    (
        "database space exceeded",
        "etcd.no_space",
        "etcd refuses to write: its database is at its quota; compact, defragment, then disarm the alarm",
    ),
    ("permission denied", "etcd.permission_denied", "etcd refuses: this user lacks a role for the key"),
    ("authentication failed", "etcd.wrong_password", "etcd knows no such user and password; check etcd.password_file"),
    ("requested lease not found", "etcd.lease_not_found", "the lease has ended, so etcd refuses to tie a key to it"),
    ("request is too large", "etcd.too_large", "etcd refuses a request of this size; its limit is 1.5 MiB"),
)


class Remedy(Enum):
    """Names the action for a failure that may go away."""

    MOVE = "move"
    LOGIN = "login"
    WAIT = "wait"


class TryFailed(Exception):
    """Reports that one try failed and that another one may work."""

    def __init__(self, remedy: Remedy, reason: str) -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.reason = reason


def read_failure(error: grpc.RpcError, endpoint: str) -> Exception:
    """Returns TryFailed when another try may work, else the error for the caller."""
    return read_status(error.code(), error.details() or "", endpoint)


def read_status(status: grpc.StatusCode, details: str, endpoint: str) -> Exception:
    """Classifies a status and its text like `read_failure`; also used for the cancel_reason of a watch."""
    reason = f"{endpoint}: {_words_of(status, details)}"
    if any(text in details for text in _TOKEN_TEXTS):
        return TryFailed(Remedy.LOGIN, reason)
    if "required revision has been compacted" in details:
        return Compacted(0)
    for text, code, message in _PEOPLE:
        if text in details:
            return GanglineError(code, f"{message} ({endpoint})", ErrorKind.UNAVAILABLE, Effect.NONE)
    if "too many requests" in details:
        return TryFailed(Remedy.WAIT, reason)
    if status in _RETRIED_STATUS:
        return TryFailed(Remedy.MOVE, reason)
    return GanglineError("etcd.refused", f"etcd at {endpoint}: {_words_of(status, details)}", ErrorKind.INTERNAL)


def _words_of(status: grpc.StatusCode, details: str) -> str:
    """Returns etcd's own sentence, which an operator can look up, or ours in place of grpc's."""
    if details.startswith(("etcdserver:", "auth:", "mvcc:", "raft:", "lease:")):
        return details
    if status is grpc.StatusCode.UNAVAILABLE:
        return transport_fault.unreachable(details).words
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "it did not answer in time"
    return transport_fault.refused(status.name, details)


def read_cancel_reason(text: str, endpoint: str) -> Exception:
    """Classifies a cancelled watch. The text carries a whole status: "rpc error: code = X desc = Y"."""
    match = re.search(r"desc = (.*)", text)
    return read_status(grpc.StatusCode.UNAVAILABLE, match[1] if match else text, endpoint)
