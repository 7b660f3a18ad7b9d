"""PURE: the texts and labels that users give their experiments, and their limits.

The SDK checks a change before it sends it, and the scheduler again. A name or a label is one line; description and
notes may have several.
"""

from __future__ import annotations

from collections.abc import Iterable

from gangline.config.bound import MAX_NAME_LENGTH
from gangline.domain.experiment import TextChange
from gangline.errors import invalid
from gangline.printable import find_unprintable

MAX_LABELS = 64
MAX_LABEL_LENGTH = 128
MAX_TEXT_LENGTH = 16 << 10


def check_text_change(change: TextChange) -> None:
    """Raises GanglineError `texts.nothing`, `texts.name`, `texts.label`, `texts.too_long`, `texts.text`."""
    if change == TextChange():
        raise invalid("texts.nothing", "nothing is to be changed; give a name, a description, notes or labels")
    if change.name is not None:
        check_line("texts.name", "the name", change.name, MAX_NAME_LENGTH)
    for label in (*change.add_labels, *change.remove_labels):
        check_line("texts.label", "a label", label, MAX_LABEL_LENGTH)
    for what, text in (("description", change.description), ("notes", change.notes)):
        if text is not None:
            check_note(what, text)


def merge_labels(labels: Iterable[str], change: TextChange) -> tuple[str, ...]:
    """Returns the labels after a change, sorted. Raises GanglineError `texts.label` for too many of them."""
    before = () if change.replaces_labels else tuple(labels)
    merged = tuple(sorted({*before, *change.add_labels} - set(change.remove_labels)))
    if len(merged) > MAX_LABELS:
        raise invalid("texts.label", f"{len(merged)} labels, at most {MAX_LABELS} are allowed; remove some")
    return merged


def check_note(what: str, text: str) -> None:
    """Checks a text of several lines. what: the subject of the message. Raises GanglineError `texts.too_long`,
    `texts.text`."""
    if len(text) > MAX_TEXT_LENGTH:
        raise invalid(
            "texts.too_long", f"{what}: {len(text)} characters, at most {MAX_TEXT_LENGTH} are allowed; shorten it"
        )
    if not _is_storable(text):
        raise invalid("texts.text", f"{what}: holds the character NUL or half a character; remove it")


def check_line(code: str, what: str, text: str, most: int) -> None:
    """Checks a text of one line. Raises GanglineError with this code. what: the subject of the message."""
    letter = find_unprintable(text)
    if letter is not None:
        raise invalid(code, f"{what} has the control character {letter}; use characters that can be printed")
    if not text or text != text.strip():
        raise invalid(code, f"{what} is empty, or begins or ends with a space; give another one")
    if len(text) > most:
        raise invalid(code, f"{what} has {len(text)} characters, at most {most} are allowed; shorten it")


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text
