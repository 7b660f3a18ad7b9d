"""Look-ups in the mirror that may be ahead of it: a user may name a record that was created at another gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gangline.errors import ErrorKind, GanglineError
from services.gateway.mirror.mirror import Watched

T = TypeVar("T")


async def find_confirmed(mirror: Watched, find: Callable[[], T], key: str) -> T:
    """Returns what the function finds. A record that the mirror lacks may be new, so the mirror is brought up to date
    for `key` first, which every creation and every new name changes. Raises GanglineError `gateway.behind`, and what
    `find` raises."""
    try:
        return find()
    except GanglineError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
    await mirror.confirm(key)
    return find()
