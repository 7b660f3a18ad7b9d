"""How much work a function is, counted, so that a slow or busy machine gives the same number."""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from gangline.errors import GanglineError


def calls_of(function: Callable[[], object]) -> int:
    """Calls that `function` makes in this thread, of Python's and of C's; a refusal of Gangline ends it."""
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with suppress(GanglineError):
            function()
    finally:
        sys.setprofile(None)
    return num_calls
