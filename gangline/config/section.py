"""PURE: the base of every part of an experiment's configuration.

Owns the base model: its types are strict, and `null` takes the default as in Determined. Unknown keys are refused in a
user's text (validated with WRITTEN). They are ignored in a configuration that another version of Gangline stored. Owns
also the form in which a check names its error; gangline.config.complaint turns all of them into one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

# The validation context of a text that a user wrote.
WRITTEN: dict[str, bool] = {"is_written_by_user": True}
# The type of the errors that a check of this package raises itself.
FAULT = "gangline_fault"
_MOST_KEYS_LISTED = 12
_MOST_CHARACTERS_SHOWN = 200
_WORDS_BY_TYPE: tuple[tuple[type, str], ...] = (
    (type(None), "nothing"),
    (int, "the integer {}"),
    (float, "the number {}"),
    (str, "the string {!r}"),
    (list, "a list"),
    (tuple, "a list"),
    (Mapping, "a mapping"),
)


def fault(code: str, text: str, *path: str | int) -> PydanticCustomError:
    """Makes the error of a check, to be raised in a validator.

    code: the last part of the GanglineError's code. text: what is wrong, without the place. path: from the validated
    section to the offending value.
    """
    return PydanticCustomError(FAULT, "{text}", {"text": text, "code": code, "path": tuple(path)})


def unknown_key(key: str, keys: Iterable[str]) -> PydanticCustomError:
    """Makes the error for a key that does not exist here; it names the nearest existing key."""
    keys = sorted(keys)
    nearest = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    listed = ", ".join(keys[:_MOST_KEYS_LISTED]) + (" and more" if len(keys) > _MOST_KEYS_LISTED else "")
    advice = f"did you mean {nearest[0]}?" if nearest else f"known here are {listed}"
    return fault("unknown_key", f"unknown key; {advice}", key)


def describe(value: Any) -> str:
    """Describes a value of a YAML file for a sentence: the string 'two', the integer 2, a list."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    for value_type, words in _WORDS_BY_TYPE:
        if isinstance(value, value_type):
            return words.format(clip(value) if isinstance(value, str) else value)
    return f"a {type(value).__name__}"


def clip(text: str) -> str:
    """Cuts a user's text for a message, which must stay one readable line."""
    return text if len(text) <= _MOST_CHARACTERS_SHOWN else f"{text[:_MOST_CHARACTERS_SHOWN]}..."


def wrong_type(expected: str, value: Any, *path: str | int) -> PydanticCustomError:
    return fault("wrong_type", f"expected {expected}, found {describe(value)}", *path)


class Section(BaseModel):
    """One mapping of the configuration. It is frozen: a configuration never changes after it was accepted."""

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, json_schema_extra={"additionalProperties": False}
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Itself, as it never changes. pydantic copies such a default for each configuration that does not name it."""
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_mapping(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        if info.context is WRITTEN:
            for key in value:
                if key not in cls.model_fields:
                    raise unknown_key(str(key), cls.model_fields)
        # Dropping a null lets the default apply. A required key keeps its null, which then is a wrong type.
        optional = _optional_keys(cls)
        return {key: entry for key, entry in value.items() if entry is not None or key not in optional}

    @classmethod
    def is_default(cls, key: str, value: Any) -> bool:
        """Returns whether leaving the key out has the same meaning; for null it always has."""
        default = cls.model_fields[key].get_default(call_default_factory=True, validated_data={})
        return value is None or bool(value == default)


@cache
def _optional_keys(section: type[Section]) -> frozenset[str]:
    """Returns the keys that have a default."""
    return frozenset(key for key, field in section.model_fields.items() if not field.is_required())
