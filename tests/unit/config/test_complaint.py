"""Every error type of pydantic, also one that no model of ours raises, becomes a sentence of Gangline."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core.core_schema import ErrorType

from gangline.config.complaint import say_expectation, say_mistake

_FOREIGN = ("Input should", "should ", "Extra inputs", "Field required", "Value error", "validation", "JSON input")


@pytest.mark.parametrize("error_type", get_args(ErrorType))
def test_no_error_type_has_the_words_of_pydantic(error_type: str) -> None:
    entry = {"type": error_type, "input": {"key": ["value"]}, "msg": "Input should be well", "ctx": {}}
    for words in (say_mistake(entry), say_expectation(entry)):
        assert words
        assert words.splitlines() == [words]
        assert not [part for part in _FOREIGN if part in words], words


class _Model(BaseModel, extra="forbid", strict=True):
    count: int = Field(default=1, ge=1, le=9)
    names: list[str] = Field(default_factory=lambda: ["a"], min_length=1, max_length=2)
    text: str = Field(default="a", max_length=1)
    even: int = 2

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"count": 0}, "must be at least 1, found 0"),
        ({"count": 10}, "must be at most 9, found 10"),
        ({"count": "1"}, "expected an integer, found the string '1'"),
        ({"names": []}, "must have at least 1 entry, found a list"),
        ({"names": ["a", "b", "c"]}, "must have at most 2 entries, found a list"),
        ({"text": "ab"}, "must have at most 1 character, found the string 'ab'"),
        ({"even": 3}, "must be even, found the integer 3"),
        ({"odd": 3}, "unknown key; remove it"),
    ],
)
def test_words(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Model.model_validate(values)
    assert say_mistake(dict(caught.value.errors()[0])) == words
