"""PURE: the patterns that people write, read by RE2: Go's syntax, and a search takes time linear in the text's length.

Submit refuses with it what no runner could search for (gangline.config.failure); trial runners search with it. Nobody
else reads a pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import re2


class BadPattern(ValueError):
    """Its text names the pattern and what RE2 says of it."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Whether the pattern is found anywhere in a text. Raises BadPattern."""
    options = re2.Options()
    # RE2 prints its errors to standard error as well.
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise BadPattern(f"{pattern!r} is no pattern of RE2: {error.args[0].decode()}") from error
    return lambda text: compiled.search(text) is not None
