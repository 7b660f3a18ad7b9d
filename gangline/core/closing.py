"""Ends the parts of a rank so that the error that ends it is the one that is reported.

A step of the end may fail for the same cause as the training did, as the flush of a file on full storage. Its error
must not take the place of the first one, and a step that hangs must not keep the rank from ending.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Limit for a step that writes to storage.
CLOSE_SECONDS = 10.0
_log = logging.getLogger("gangline")


@contextmanager
def ending(**steps: Callable[[], object]) -> Iterator[None]:
    """Runs all steps after the block, in order. The error of the block takes precedence over those of the steps, and
    the first step's error over later ones. The others are logged under the step's name."""
    try:
        yield
    except BaseException:
        _end(steps)
        raise
    first_error = _end(steps, raises_first=True)
    if first_error is not None:
        raise first_error


def _end(steps: dict[str, Callable[[], object]], *, raises_first: bool = False) -> Exception | None:
    """Runs the steps. Returns the first error if it is to be raised, and logs the others."""
    first_error: Exception | None = None
    for name, step in steps.items():
        try:
            step()
        except Exception as error:  # noqa: BLE001  any error, as the other steps must run too
            if raises_first and first_error is None:
                first_error = error
            else:
                _log.error("the end of the %s failed: %r", name.replace("_", " "), error)
    return first_error


def close_side_output(what: str, step: Callable[[], object], seconds: float = CLOSE_SECONDS) -> None:
    """Runs a step that writes output without which training is complete. An error is logged; a step that takes longer
    is left behind."""

    def run() -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  storage of any kind may fail in any way
            _log.warning("%s are not complete: %s: %s", what, type(error).__name__, error)

    thread = threading.Thread(target=run, name="gangline-closing", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _log.warning("%s are not complete: the storage has not taken them for %g s", what, seconds)
