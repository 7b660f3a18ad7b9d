"""PURE: metrics that are no numbers: texts, lists and mappings, as JSON of a limited size.

`encode_values` makes the JSON of a report in a rank, whose user reads the reasons. `admit_values` reads it again at the
gateway, because a rank runs a user's program, which may send anything. Both leave out values beyond the limits, each
with a reason, and keep the others. The metadata of a trial are JSON by the same rules, and refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from gangline.domain.document import check_document, to_encodable
from gangline.errors import invalid

# Limit of the JSON of one value, and of all values of one report.
MOST_VALUE_BYTES = 64 << 10
MOST_REPORT_BYTES = 256 << 10
# Levels of lists and mappings in one value.
MOST_LEVELS = 32
MOST_NAME_LENGTH = 256
# Limit of a trial's metadata as JSON. They are part of the trial's record, which is written often.
MOST_METADATA_BYTES = 16 << 10
# The reason for text that holds no values at all.
UNREADABLE = "the values are no JSON object"


class UnfitValue(ValueError):
    """The reason why a value is not recorded, as the end of the sentence "metric x is ..."."""


_TOO_LARGE = f"larger than {MOST_VALUE_BYTES >> 10} KiB as JSON"


def encode_values(values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Returns the values as a JSON object, empty where none is left, and the reasons of those left out, by name. NaN
    and the infinities stay, as Python writes them."""
    texts: list[str] = []
    left_out: dict[str, str] = {}
    num_bytes = 0
    for name, value in values.items():
        try:
            text = f"{_encode_name(name)}: {_encode(value)}"
        except UnfitValue as unfit:
            left_out[name] = str(unfit)
            continue
        if num_bytes + len(text) > MOST_REPORT_BYTES:
            left_out[name] = f"beyond the {MOST_REPORT_BYTES >> 10} KiB that the values of one report may have"
            continue
        num_bytes += len(text)
        texts.append(text)
    return (f"{{{', '.join(texts)}}}" if texts else ""), left_out


def encode_metadata(metadata: object) -> str:
    """Returns a trial's metadata as a JSON object. Raises GanglineError `core.metadata` for anything that does not fit
    into one."""
    if not isinstance(metadata, Mapping):
        raise invalid("core.metadata", f"the metadata of a trial are a {type(metadata).__name__}; give a dictionary")
    text, left_out = encode_values({str(name): value for name, value in metadata.items()})
    for name, reason in left_out.items():
        raise invalid("core.metadata", f"the metadata of a trial: {name:.80} is {reason}; give plain data")
    if len(text) > MOST_METADATA_BYTES:
        raise invalid(
            "core.metadata",
            f"the metadata of a trial have {len(text)} bytes as JSON, at most {MOST_METADATA_BYTES} are kept; put "
            "large data into a checkpoint",
        )
    return text or "{}"


def check_metadata(text: str) -> None:
    """Checks metadata that a rank has sent. Raises GanglineError `core.metadata`, `document.invalid`."""
    if len(text) > MOST_METADATA_BYTES:
        raise invalid("core.metadata", f"the metadata of a trial have {len(text)} bytes, at most {MOST_METADATA_BYTES}")
    check_document(text, "the metadata of a trial")


def admit_values(text: str) -> tuple[str, dict[str, str]]:
    """Returns the same for JSON that a rank has sent. A text that is no JSON object is left out as a whole, under the
    name ""."""
    if not text:
        return "", {}
    # Separators and brackets come on top of the values.
    if len(text) > 2 * MOST_REPORT_BYTES:
        return "", {"": f"the values have {len(text)} bytes"}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return "", {"": UNREADABLE}
    return encode_values(values) if isinstance(values, dict) else ("", {"": UNREADABLE})


def _encode_name(name: str) -> str:
    if len(name) > MOST_NAME_LENGTH:
        raise UnfitValue(f"named with more than {MOST_NAME_LENGTH} characters")
    return json.dumps(to_encodable(name))


def _encode(value: Any) -> str:
    plain, _ = _plain(value, MOST_LEVELS, MOST_VALUE_BYTES)
    try:
        text = json.dumps(plain)
    except ValueError as error:
        # Python writes no whole number of more than 4300 digits.
        raise UnfitValue(_TOO_LARGE) from error
    if len(text) > MOST_VALUE_BYTES:
        raise UnfitValue(_TOO_LARGE)
    return text


def _plain(value: Any, levels: int, budget: int) -> tuple[Any, int]:
    """Returns the value made of JSON's types, and the bytes that are left of the budget. A budget keeps a huge or
    cyclic value from being copied. It is never too strict: a value takes one byte at least, and a comma."""
    budget -= len(value) if isinstance(value, str) else 2
    if budget < -2:
        raise UnfitValue(_TOO_LARGE)
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float):
        return value, budget
    if isinstance(value, str):
        return to_encodable(value), budget
    if not levels:
        raise UnfitValue(f"nested more than {MOST_LEVELS} levels deep")
    if isinstance(value, Mapping):
        entries: dict[str, Any] = {}
        for key, entry in value.items():
            name, budget = _plain(_key(key), levels, budget)
            entries[name], budget = _plain(entry, levels - 1, budget)
        return entries, budget
    if isinstance(value, list | tuple):
        items: list[Any] = []
        for entry in value:
            item, budget = _plain(entry, levels - 1, budget)
            items.append(item)
        return items, budget
    return _plain_array(value, levels, budget)


def _plain_array(value: Any, levels: int, budget: int) -> tuple[Any, int]:
    """Reads an array of numpy or a tensor of torch, without an import of either."""
    to_list, size = getattr(value, "tolist", None), getattr(value, "size", None)
    if not callable(to_list) or isinstance(value, type):
        raise UnfitValue(f"a {type(value).__name__}, which JSON cannot hold")
    num_entries = value.numel() if hasattr(value, "numel") else size
    if isinstance(num_entries, int) and 2 * num_entries > budget + 2:
        raise UnfitValue(_TOO_LARGE)
    return _plain(to_list(), levels - 1, budget)


def _key(key: Any) -> str:
    """Returns a mapping's key as JSON writes it."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise UnfitValue(f"a mapping with a {type(key).__name__} as a key, which JSON cannot hold")
