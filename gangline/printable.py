"""PURE: text without characters that act on a terminal instead of being shown on it.

Names, log lines, metrics' names and failure reasons come from users' programs. Escape sequences in them could set the
title, write the clipboard or clear the screen of whoever lists experiments; carriage returns and bidirectional controls
could fake what a line says. The CLI shows such characters as escapes; names that contain one are refused at submit.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, the line and paragraph separators, bidirectional controls, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNSAFE_IN_LINE = re.compile(_UNSAFE.pattern.replace("\x0b", "\t\n\x0b"))
# Colours and weights, which programs print into logs: they only style text, and are left out without a trace.
_STYLE = re.compile("\x1b\\[[0-9;:]*m")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def to_printable(text: str) -> str:
    """Of several lines: tabs and newlines stay."""
    return _UNSAFE.sub(_escape, _STYLE.sub("", text))


def to_line(text: str) -> str:
    """Of one line: a newline or a tab is shown as an escape as well, so that it adds no row and shifts no column."""
    return _UNSAFE_IN_LINE.sub(_escape, _STYLE.sub("", text))


def find_unprintable(name: str) -> str | None:
    """The first character that a name must not have, as an escape; None where there is none."""
    found = _UNSAFE_IN_LINE.search(name)
    return _escape(found) if found else None


def _escape(match: re.Match[str]) -> str:
    letter = match.group()
    code = ord(letter)
    return _NAMED.get(letter, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
