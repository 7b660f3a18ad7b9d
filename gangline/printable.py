"""PURE: removes from text the characters that act on a terminal instead of being shown on it.

Names, log lines, metrics' names and failure reasons come from users' programs. Escape sequences in them could set the
title, write the clipboard or clear the screen of the user who lists experiments. Carriage returns and bidirectional
controls could fake the content of a line. The CLI shows such characters as escapes; submit refuses names that contain
one.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, the line and paragraph separators, bidirectional controls, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNSAFE_IN_LINE = re.compile(_UNSAFE.pattern.replace("\x0b", "\t\n\x0b"))
# Matches the colours and weights that programs print into logs. They only style text, so they are removed without an
# escape.
_STYLE = re.compile("\x1b\\[[0-9;:]*m")
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def to_printable(text: str) -> str:
    """Returns a text of several lines with unsafe characters as escapes. Tabs and newlines stay."""
    return _UNSAFE.sub(_escape, _STYLE.sub("", text))


def to_line(text: str) -> str:
    """Returns a text of one line with unsafe characters as escapes. A newline or a tab becomes an escape as well, so
    that it adds no row and shifts no column."""
    return _UNSAFE_IN_LINE.sub(_escape, _STYLE.sub("", text))


def without_style(text: str) -> str:
    """Returns the text without colours and weights; other escape sequences stay."""
    return _STYLE.sub("", text) if "\x1b" in text else text


def find_unprintable(name: str) -> str | None:
    """Returns the first character that a name must not have, as an escape; None where there is none."""
    match = _UNSAFE_IN_LINE.search(name)
    return _escape(match) if match else None


def _escape(match: re.Match[str]) -> str:
    letter = match.group()
    code = ord(letter)
    return _NAMED.get(letter, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
