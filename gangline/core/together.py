"""Runs a step on all ranks together: if it fails on one rank, all ranks raise that rank's error.

Owns how an error is sent. The rank that failed also says whether its storage is waited for, because only it has the
error itself. Used by gangline.core.checkpoint, the saver and the writer of tensors, which run in step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol

from gangline.core.transport import Transport
from gangline.domain.storage.storage_fault import JUDGED, waits
from gangline.errors import GanglineError

# Message of a rank: the result and None, or None and a failure. A failure is the judgement of its storage, followed by
# the code, message and kind of a GanglineError or by the text of any other error.
Told = tuple[Any, Any]


class Gathering(Protocol):
    def allgather(self, value: Any) -> list[Any]: ...


class RankError(Exception):
    """Error on another rank, or on this one."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text


def together(transport: Gathering, work: Callable[[], Any]) -> list[Any]:
    """Runs `work` and returns every rank's result, once all have one. Raises the first rank's GanglineError or
    RankError."""
    everyone = transport.allgather(attempt(work))
    raise_first(everyone)
    return [result for result, _ in everyone]


def through_first(
    transport: Transport, size: int, work: Callable[[], Any], combine: Callable[[list[Any]], list[Any]]
) -> Any:
    """Runs `work` on every rank. The first rank combines all results into one answer for each rank, and every rank gets
    its own.

    Results and answers are sent to one rank and from it, so they may be large. Raises as `together`.
    """
    everyone = transport.gather(attempt(work))
    answers: list[Any] | None = None
    if everyone is not None:
        failure = _first_failure(everyone)
        if failure is None:
            combined, own = attempt(lambda: combine([result for result, _ in everyone]))
            failure = None if own is None else (0, own)
        answers = [(None, failure)] * size if failure else [(answer, None) for answer in combined]
    answer, failure = transport.scatter(answers)
    if failure is not None:
        raise_failure(*failure)
    return answer


def attempt(work: Callable[[], Any]) -> Told:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  the other ranks wait for this one and must get its error
        return None, failure_of(error)


def failure_of(error: Exception) -> tuple[Any, ...]:
    """Returns the failure that describes an error to other ranks."""
    if isinstance(error, GanglineError):
        return waits(error), error.code, error.message, error.kind
    return waits(error), f"{type(error).__name__}: {error}"


def raise_failure(rank: int, failure: tuple[Any, ...]) -> NoReturn:
    """Raises the error of a failure that a rank has sent."""
    is_waited_for, *what = failure
    error = GanglineError(*what) if len(what) > 1 else RankError(rank, *what)
    setattr(error, JUDGED, is_waited_for)
    raise error


def raise_first(everyone: Iterable[Told]) -> None:
    first_failure = _first_failure(everyone)
    if first_failure is not None:
        raise_failure(*first_failure)


def _first_failure(everyone: Iterable[Told]) -> tuple[int, Any] | None:
    """Returns the first rank's failure. One that waiting does not mend comes before those that it may mend."""
    failures = [(rank, failure) for rank, (_, failure) in enumerate(everyone) if failure is not None]
    return min(failures, key=lambda failure: (failure[1][0], failure[0]), default=None)
