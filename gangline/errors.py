"""PURE: the one error that users and operators see, and its kinds.

Code raises it where it finds a mistake of a user or an operator, never for bugs of Gangline; those are assertions. The
CLI prints `message` as one line. The HTTP API turns it into a problem document, and gRPC into a status with details.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """Classifies a failure; gRPC and HTTP derive their status from it."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    CONFLICT = "conflict"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


# A message crosses the wire in gRPC trailers, where a character takes up to 12 bytes; protocol/rpc.py allows for it.
_MOST_CHARACTERS = 1200
_CUT = " [...] "


class Effect(StrEnum):
    """States the effect of a change that failed. NONE: certainly nothing was changed. UNKNOWN: the change may have been
    made or may still be made."""

    NONE = "none"
    UNKNOWN = "unknown"


# Failures of these kinds leave open whether the change was made. All other kinds are refusals, which change nothing.
_OPEN_KINDS = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT, ErrorKind.INTERNAL)


class GanglineError(Exception):
    """An error with a stable code.

    code: dotted, stable over releases, as in "config.unknown_key"; scripts may compare it.
    message: one line that states what failed, where, and what to do instead. It may quote input. Parts of the input
    that are no text are replaced, and a message that is too long is cut in its middle.
    effect: of the requested change; meaningless for reads. None takes what the kind implies: a refusal changes nothing,
    a failure may have changed something.
    request_id: of the change, where the code that raises knows it. Sending the same id again makes no second change.
    leader_address: "host:port" of the scheduler that leads, in the answer of a scheduler that does not lead; else
    empty.
    """

    def __init__(
        self,
        code: str,
        message: str,
        kind: ErrorKind = ErrorKind.INVALID,
        effect: Effect | None = None,
        request_id: str = "",
    ) -> None:
        message = _one_line(message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind
        self.effect = effect or (Effect.UNKNOWN if kind in _OPEN_KINDS else Effect.NONE)
        self.request_id = request_id
        self.leader_address = ""

    def reworded(self, message: str) -> GanglineError:
        """Returns the same failure with another message."""
        error = GanglineError(self.code, message, self.kind, self.effect, self.request_id)
        error.leader_address = self.leader_address
        return error

    def __repr__(self) -> str:
        return f"GanglineError({self.code!r}, {self.message!r}, {self.kind!r})"


def _one_line(message: str) -> str:
    message = " ".join(message.splitlines()).encode(errors="replace").decode()
    if len(message) <= _MOST_CHARACTERS:
        return message
    kept = (_MOST_CHARACTERS - len(_CUT)) // 2
    return message[:kept] + _CUT + message[-kept:]


class InvalidHP(GanglineError):
    """Hyperparameters that cannot be trained with. A trial raises it, fails at once and is not retried."""

    def __init__(self, message: str = "these hyperparameters cannot be trained with") -> None:
        super().__init__("trial.invalid_hp", message)


def say_effect(error: GanglineError, done: str = "this was done", not_done: str = "nothing was changed") -> str:
    """Returns the message of a failed change, prefixed with what is known of its effect. done, not_done: clauses that
    name it."""
    if error.effect is Effect.UNKNOWN:
        return f"it is not known whether {done}: {error.message}"
    return f"{not_done}: {error.message}" if error.kind in _OPEN_KINDS else error.message


def invalid(code: str, message: str) -> GanglineError:
    """Makes the error for input that cannot be accepted as it is."""
    return GanglineError(code, message, ErrorKind.INVALID)


def not_found(code: str, message: str) -> GanglineError:
    """Makes the error for a thing that does not exist."""
    return GanglineError(code, message, ErrorKind.NOT_FOUND)


def conflict(code: str, message: str) -> GanglineError:
    """Makes the error for input that is right by itself but not in the present state."""
    return GanglineError(code, message, ErrorKind.CONFLICT)


def unavailable(code: str, message: str, effect: Effect | None = None) -> GanglineError:
    """Makes the error for a condition that others must fix first; a later retry may succeed."""
    return GanglineError(code, message, ErrorKind.UNAVAILABLE, effect)


def unauthenticated(code: str, message: str) -> GanglineError:
    """Makes the error for a missing token, or for a token that belongs to no user."""
    return GanglineError(code, message, ErrorKind.UNAUTHENTICATED)
