"""PURE: limits on the size of a configuration, and on the values that it may hold.

Owns the limits on text, depth, number of values and lengths of names. It runs on every configuration that a user wrote
or a client sent, before its fields are validated. So later steps may recurse into, print and store any value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gangline.config.complaint import Complaint, Path
from gangline.errors import GanglineError, invalid

# A trial stores its hyperparameters and its experiment stores the whole configuration. One transaction of 500 kB has to
# hold both.
MAX_TEXT_BYTES = 128 << 10
# Keeps recursive readers of a configuration far below Python's recursion limit.
MAX_DEPTH = 32
MAX_VALUES = 20_000
# Entries of a list of settings. Each may be an error, and pydantic collects all errors before it returns.
MAX_ENTRIES = 2000
# Sections whose values are the trial's, which nothing validates one by one.
_FREE = frozenset({
    "data", "hyperparameters", "integrations", "internal", "data_layer", "tensorboard_storage", "security", "slurm",
    "pbs",
})  # fmt: skip
MAX_NAME_LENGTH = 256
# Limit in characters of a small text. Any text of this size is parsed within milliseconds.
SMALL_TEXT = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def is_small(text: str) -> bool:
    """Returns whether the text may be parsed on an event loop, where a thread for it would take longer."""
    return len(text) <= SMALL_TEXT


def check_text(text: str) -> None:
    """Checks the size and the encoding of a text. Raises GanglineError `config.too_large`, `config.syntax`."""
    # A character takes one byte at least, so a long text is refused before it is encoded.
    try:
        num_bytes = len(text) if len(text) > MAX_TEXT_BYTES else len(text.encode())
    except UnicodeEncodeError as failure:
        raise invalid("config.syntax", f"the configuration is no Unicode text: {failure.reason}") from failure
    if num_bytes > MAX_TEXT_BYTES:
        raise _too_large(num_bytes)


def _too_large(num_bytes: int) -> GanglineError:
    return invalid(
        "config.too_large",
        f"the configuration has {num_bytes} bytes, at most {MAX_TEXT_BYTES} ({MAX_TEXT_BYTES >> 10} KiB) are allowed; "
        "put data into the code folder",
    )


def too_deep() -> GanglineError:
    return invalid("config.too_large", f"the configuration is nested more than {MAX_DEPTH} deep; flatten it")


def too_many(num_values: int, when: str = "") -> GanglineError:
    return invalid(
        "config.too_large",
        f"the configuration has {count_text(num_values)} values{when}, at most {MAX_VALUES} are allowed; "
        "put data into the code folder",
    )


def count_text(number: int) -> str:
    """Returns a count for a message. Python refuses to print an integer of thousands of digits."""
    return str(number) if number < 10**15 else f"about 10^{round((number.bit_length() - 1) * math.log10(2))}"


_SCALARS = (str, int, float, type(None))


def find_unusable(values: Any) -> Complaint | None:
    """Returns the first value or name that cannot be stored. Raises GanglineError `config.too_large`."""
    num_characters = 0
    for num_values, (path, value) in enumerate(_walk(values), 1):
        num_characters += len(value) if isinstance(value, str) else 0
        if len(path) > MAX_DEPTH:
            raise too_deep()
        if num_values > MAX_VALUES:
            raise too_many(num_values)
        if num_characters > MAX_TEXT_BYTES:
            raise _too_large(num_characters)
        text = _judge_key(path) or _judge(value) or _judge_list(path, value)
        if text is not None:
            return Complaint("invalid_value", path, text)
    name = values.get("name") if isinstance(values, Mapping) else None
    if isinstance(name, str) and len(name) > MAX_NAME_LENGTH:
        return Complaint("invalid_value", ("name",), _too_long(len(name)))
    return None


def _walk(values: Any) -> Iterator[tuple[Path, Any]]:
    """Yields every value with its path, in the order of the text. It does not recurse, so no depth can exhaust the
    stack."""
    waiting: list[tuple[Path, Any]] = [((), values)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if isinstance(value, _SCALARS):
            # Most values are scalars, and to find that they are no Mapping takes longer than all else here.
            continue
        inner: list[tuple[Path, Any]] = []
        if isinstance(value, Mapping):
            inner = [((*path, key if isinstance(key, str) else str(key)), entry) for key, entry in value.items()]
        elif isinstance(value, list | tuple):
            inner = [((*path, place), entry) for place, entry in enumerate(value)]
        waiting.extend(reversed(inner))


def _judge_key(path: Path) -> str | None:
    key = path[-1] if path else ""
    if not isinstance(key, str):
        return None
    return _too_long(len(key)) if len(key) > MAX_NAME_LENGTH else _judge_string(key)


def _judge(value: Any) -> str | None:
    if isinstance(value, str):
        return _judge_string(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return "is an integer beyond 64 bits; write it as a string"
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}, which is no finite number; JSON and the database cannot keep it"
    if isinstance(value, bytes | set):
        return f"is of the YAML type {type(value).__name__}, which JSON cannot keep; write it as a string or a list"
    return None


def _judge_list(path: Path, value: Any) -> str | None:
    if not isinstance(value, list | tuple) or len(value) <= MAX_ENTRIES or path[:1] == () or path[0] in _FREE:
        return None
    return f"has {len(value)} entries, at most {MAX_ENTRIES} are allowed"


def _judge_string(text: str) -> str | None:
    if "\x00" in text:
        return "holds the character NUL; remove it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a Unicode surrogate pair, which is no character; write the character itself"
    return None


def _too_long(length: int) -> str:
    return f"a name has at most {MAX_NAME_LENGTH} characters, this one has {length}"
