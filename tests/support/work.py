"""How much work a function is, counted, so that a slow or busy machine gives the same number."""

from collections.abc import Callable
from contextlib import suppress
from cProfile import Profile

from gangline.errors import GanglineError


def calls_of(function: Callable[[], object]) -> int:
    """Calls that `function` makes in this thread, of Python's and of C's; a refusal of Gangline ends it."""
    profile = Profile()
    with suppress(GanglineError), profile:
        function()
    return sum(entry.callcount for entry in profile.getstats())
