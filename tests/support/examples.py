"""How many random examples a property test tries, and whether they are the same each time: the one place that decides.

With `CI` set they are the same, and a quarter of those that the test asks for. Elsewhere all of them are drawn anew.
GANGLINE_EXAMPLES=all makes it all of them with `CI` as well.
"""

from __future__ import annotations

import os

VARIABLE = "GANGLINE_EXAMPLES"
# What a test asks for that names no number; hypothesis' own default.
USUAL = 100


def examples(count: int) -> int:
    """Returns how many a test tries that asks for this many; at least one."""
    chosen = os.environ.get(VARIABLE) or ("quarter" if are_fixed() else "all")
    assert chosen in {"all", "quarter"}, f"{VARIABLE} is all or quarter, not {chosen!r}"
    return count if chosen == "all" else -(-count // 4)


def are_fixed() -> bool:
    """True where the same examples are tried each time, so that a change breaks the build and not chance."""
    return bool(os.environ.get("CI"))
