"""PURE: compiles the patterns that users write, with RE2. Their syntax is Go's, and a search takes time linear in the
text's length.

A compile holds Python's global lock, so its cost is bounded here, by the pattern's length and by the memory of its
program. The gateway refuses a pattern of a submit that no runner could search for (gangline.config.failure), and trial
runners search with it. The scheduler compiles none.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

# In characters. A class such as \pL has hundreds of ranges, and reading a text of such classes takes 25 us a character.
MAX_PATTERN_LENGTH = 1000
# For the program of a pattern and for its search. .{1000} fits, and \pL{400} would take 40 times as much.
MAX_PATTERN_BYTES = 512 << 10


class BadPattern(ValueError):
    """A pattern that is refused. Its text names the pattern and the reason."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Returns a function that reports whether the pattern is found anywhere in a text. Raises BadPattern."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadPattern(
            f"the pattern {pattern[:40]!r}... has {len(pattern)} characters, at most {MAX_PATTERN_LENGTH} are allowed"
        )
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        raise BadPattern(f"{pattern[:40]!r} has a character that is half of one; leave it out") from error
    options = re2.Options()
    # RE2 prints its errors to standard error as well.
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise BadPattern(f"{pattern!r} is no pattern of RE2: {error.args[0].decode()}") from error
    return lambda text: compiled.search(text) is not None
