"""Runs a step on all ranks together: if it fails on one rank, all ranks raise that rank's error.

Owns how an error is sent. Used by the saver and by the writer of tensors; both run in step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gangline.core.transport import Transport
from gangline.errors import ErrorKind, GanglineError

# Message of a rank: the result and None, or None and a failure.
Told = tuple[Any, Any]


class RankError(Exception):
    """Error on another rank, or on this one."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text


def together(transport: Transport, work: Callable[[], Any]) -> list[Any]:
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
        _raise(*failure)
    return answer


def attempt(work: Callable[[], Any]) -> Told:
    try:
        return work(), None
    except GanglineError as error:
        return None, (error.code, error.message, error.kind)
    except Exception as error:  # noqa: BLE001  the other ranks wait for this one and must get its error
        return None, f"{type(error).__name__}: {error}"


def raise_first(everyone: Iterable[Told]) -> None:
    first_failure = _first_failure(everyone)
    if first_failure is not None:
        _raise(*first_failure)


def _first_failure(everyone: Iterable[Told]) -> tuple[int, Any] | None:
    return next(((rank, failure) for rank, (_, failure) in enumerate(everyone) if failure is not None), None)


def _raise(rank: int, failure: tuple[str, str, ErrorKind] | str) -> None:
    if isinstance(failure, tuple):
        raise GanglineError(*failure)
    raise RankError(rank, failure)
