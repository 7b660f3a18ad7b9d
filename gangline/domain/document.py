"""PURE: JSON documents that users' programs supply, such as the metadata of a checkpoint.

`check_document` refuses at intake a document that a reader could not show. `read_document` reads documents that were
stored before that check existed. It never fails, and its result can be written as JSON again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gangline.errors import GanglineError, invalid

# Serializers fail near 250 levels; no metadata needs a fraction of that.
MOST_LEVELS = 64
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def check_document(text: str, what: str) -> None:
    """Raises GanglineError `document.invalid` unless the text is a JSON object that readers can show. NaN and
    infinities pass. what: the subject of the message."""
    try:
        value = json.loads(text)
        cleaned = to_valid(value)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _refused(what, reason) from error
    if not isinstance(value, dict):
        raise _refused(what, f"expected a JSON object, found {type(value).__name__}")
    if _has_surrogate(cleaned, value):
        raise _refused(what, "a string has a lone surrogate, which UTF-8 cannot hold")


def read_document(text: str) -> Any:
    """Returns the value of a JSON text; None for an empty text and for one that cannot be read."""
    if not text:
        return None
    try:
        return to_valid(json.loads(text))
    except (ValueError, RecursionError):
        return None


def to_valid(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Returns the same value with null for NaN and infinities, and without lone surrogates. Raises ValueError where it
    is nested too deeply."""
    if isinstance(value, str):
        return to_encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, Mapping | list | tuple):
        return value
    if not levels:
        raise ValueError(f"nested more than {MOST_LEVELS} levels deep")
    if isinstance(value, Mapping):
        return {to_encodable(str(key)): to_valid(entry, levels - 1) for key, entry in value.items()}
    return [to_valid(entry, levels - 1) for entry in value]


def to_encodable(text: str) -> str:
    """Returns the text without lone surrogates, which no UTF-8 text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(_REPLACEMENT if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text


def _has_surrogate(cleaned: Any, value: Any) -> bool:
    """Returns whether the cleaning replaced a string or a key."""
    if isinstance(value, str):
        return bool(cleaned != value)
    if isinstance(value, dict):
        return cleaned.keys() != value.keys() or any(_has_surrogate(cleaned[key], value[key]) for key in value)
    if isinstance(value, list):
        return any(map(_has_surrogate, cleaned, value))
    return False


def _refused(what: str, reason: str) -> GanglineError:
    return invalid("document.invalid", f"{what} cannot be stored: {reason}")
