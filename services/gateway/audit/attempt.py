"""One recorded call while it runs: who makes it, from where, and the records that it leaves.

A surface opens an attempt around the handler of a call of the recorded tables. Code below finds it without an argument:
`leader/leader_client.py` records each change that it makes, and use cases that change something themselves name their
object. A call that has left no record when it ends leaves one for itself.

What one caller can have refused costs nothing but the call, so the records of refusals are bounded: a change that is
refused leaves one record, whatever the number of its objects, and each caller has a budget of them.

A description that fails is a bug, and never fails the change: the record then has no values.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import structlog

from gangline.domain.audit import DONE, AuditRecord
from gangline.errors import Effect, GanglineError
from services.gateway.audit import change as changes
from services.gateway.mirror.mirror import Watched

# Of a request id, of an object's id, and of a name.
_MAX_TEXT = 200
# Outcomes of errors that have no code, by the names of their classes. The frameworks' errors are not imported here.
_CODES = {
    "CancelledError": "cancelled",
    "ClientDisconnect": "cancelled",
    "HTTPException": "request.refused",
    "RequestValidationError": "request.invalid",
}
# Those of them that are raised before anything is changed.
_REFUSALS = frozenset({"ClientDisconnect", "HTTPException", "RequestValidationError"})
# By kind of object, where a request names it.
_PLACES: Mapping[str, tuple[str, ...]] = {
    "code": ("code_sha256",),
    "experiment": ("experiment_id", "id"),
    "fusion": ("key",),
    "saved_view": ("view_id", "name"),
    "search": ("experiment_id",),
    "task": ("experiment_id",),
    "template": ("name",),
    "user": ("name", "user_id", "id"),
}

log = structlog.get_logger(__name__)
_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


class Attempt:
    """A context around one call. source: the request's message, or the parameters of its path, which name the object
    where no change does. take_refusal: receives the outcome of a refusal. Returns how many refusals of this caller were
    left out since the last one that is recorded; None if this one is left out too."""

    def __init__(
        self,
        write: Callable[[AuditRecord], None],
        take_refusal: Callable[[str], int | None],
        *,
        surface: str,
        action: str,
        actor_kind: str,
        actor: str,
        credential: str,
        address: str,
        request_id: str = "",
        source: Any = None,
    ) -> None:
        self._write = write
        self._take_refusal = take_refusal
        self._surface = surface
        self.action = action
        self._actor_kind, self._actor = actor_kind, actor
        self._credential = credential
        self._address = address
        self._request_id = request_id
        self._source = source
        self._object: tuple[str, str] | None = None
        self._new: dict[str, Any] = {}
        self._num_records = 0
        self._recorded_errors: list[BaseException] = []
        # Set by a call that turned out to change nothing, such as the preview of a bulk change.
        self.leaves_none = False
        self._token: Token[Attempt | None] | None = None

    def __enter__(self) -> Attempt:
        self._token = _current.set(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        assert self._token is not None, "the context was entered"
        _current.reset(self._token)
        self.finish(error)

    def finish(self, error: BaseException | None) -> None:
        """Leaves the call's own record unless its changes have left theirs. Called once."""
        if error is None and not self._num_records and not self.leaves_none:
            self._emit(self.action, self._place(), None, new=self._new)
        elif error is not None and not any(error is each for each in self._recorded_errors):
            self._emit(self.action, self._place(), error, new=self._new)

    def log_in(self, name: str) -> None:
        """Names the user whose session the call has opened."""
        self._actor_kind, self._actor = "user", name
        self._object = ("user", name)

    def name_object(self, kind: str, own_id: str, **new: Any) -> None:
        self._object = (kind, own_id)
        self._new |= new

    def name_objects(self, kind: str, ids: Sequence[str]) -> None:
        """Names the objects of a change that may be refused before it is sent."""
        self.name_object(kind, ids[0], **_objects(ids))

    def record(self, note: changes.ChangeNote, request_id: str, error: BaseException | None) -> None:
        """Leaves one record for each object of a change; one that names them all if the change was refused."""
        if error is not None:
            self._recorded_errors.append(error)
        ids, new = list(dict.fromkeys(note.ids)) or [""], note.new
        if error is not None and is_refusal(error):
            ids, new = ids[:1], _objects(ids) | new
        for own_id in ids:
            self._emit(
                note.action,
                (note.kind, own_id),
                error,
                workspace=note.workspace,
                old=note.old,
                new=new,
                request_id=request_id,
            )

    def refuse(self, action: str, kind: str, own_id: str, error: BaseException) -> None:
        """Leaves a record for one object of a call for several, which goes on with the others."""
        if not any(error is each for each in self._recorded_errors):
            self._recorded_errors.append(error)
            self._emit(action, (kind, own_id), error)

    def _place(self) -> tuple[str, str]:
        if self._object is not None:
            return self._object
        kind = self.action.partition(".")[0]
        if kind == "session":
            return ("user", self._actor) if self._actor_kind == "user" else ("", "")
        for name in _PLACES.get(kind, (f"{kind}_id", "id", "name")):
            value = self._find(name)
            if value:
                return kind, str(value)
        return kind, ""

    def _find(self, name: str) -> Any:
        return self._source.get(name) if isinstance(self._source, Mapping) else getattr(self._source, name, None)

    def _emit(
        self,
        action: str,
        place: tuple[str, str],
        error: BaseException | None,
        *,
        workspace: str = "",
        old: Mapping[str, Any] | None = None,
        new: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> None:
        self._num_records += 1
        outcome = DONE if error is None else outcome_of(error)
        left_out: dict[str, Any] = {}
        if error is not None and is_refusal(error):
            num_left_out = self._take_refusal(outcome)
            if num_left_out is None:
                return
            left_out = {"attempts_left_out": num_left_out} if num_left_out else {}
        request_id = request_id or self._request_id
        if action == "token.create" and request_id:
            # Whoever repeats such a request gets the token again.
            request_id = "sha256:" + hashlib.sha256(request_id.encode(errors="replace")).hexdigest()[:32]
        self._write(
            AuditRecord(
                0,
                time.time(),
                self._actor_kind,
                _bounded(self._actor),
                self._credential,
                self._address,
                self._surface,
                action,
                place[0],
                _bounded(place[1]),
                _bounded(workspace),
                changes.write_changes(old or {}, left_out | dict(new or {})),
                outcome,
                _bounded(request_id),
            )
        )


def current_attempt() -> Attempt | None:
    """Returns the recorded call in which this code runs; None outside of one."""
    return _current.get()


class Changing:
    """A context around one change that the leader makes. answer: set by the caller."""

    def __init__(self, mirror: Watched, request: Any) -> None:
        self._mirror = mirror
        self._request = request
        self._attempt = _current.get()
        self._note: changes.ChangeNote | None = None
        self.answer: Any = None

    def __enter__(self) -> Changing:
        if self._attempt is not None:
            with _only_logged():
                self._note = changes.begin(self._mirror.state, self._request)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._attempt is None or self._note is None:
            return
        if self.answer is not None and error is None:
            with _only_logged():
                changes.end(self._mirror.state, self._note, self.answer)
        self._attempt.record(self._note, self._request.request_id, error)


@contextmanager
def _only_logged() -> Iterator[None]:
    try:
        yield
    except Exception:
        # The change itself must go on, and the record is written without values.
        log.exception("a change could not be described for the audit log")


def outcome_of(error: BaseException) -> str:
    """Returns the code of an error. Its message may quote input, so it is in no record."""
    if isinstance(error, GanglineError):
        return error.code
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return _CODES.get(type(error).__name__, "internal")


def is_refusal(error: BaseException) -> bool:
    """Returns whether the error says that certainly nothing was changed."""
    if isinstance(error, GanglineError):
        return error.effect is Effect.NONE
    return type(error).__name__ in _REFUSALS


def _objects(ids: Sequence[str]) -> dict[str, Any]:
    """Returns the values of the one record that stands for several objects. `write_changes` cuts the list."""
    return {"num_objects": len(ids), "objects": list(ids)} if len(ids) > 1 else {}


def _bounded(text: str) -> str:
    return text[:_MAX_TEXT].encode(errors="replace").decode()
