"""PURE: compiles the patterns that users write, with RE2. Their syntax is Go's, and a search takes time linear in the
text's length.

Submit refuses a pattern that no runner could search for (gangline.config.failure); trial runners search with it. No
other code reads a pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import re2


class BadPattern(ValueError):
    """A pattern that RE2 refuses. Its text names the pattern and RE2's reason."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Returns a function that reports whether the pattern is found anywhere in a text. Raises BadPattern."""
    options = re2.Options()
    # RE2 prints its errors to standard error as well.
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise BadPattern(f"{pattern!r} is no pattern of RE2: {error.args[0].decode()}") from error
    return lambda text: compiled.search(text) is not None
