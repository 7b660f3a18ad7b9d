"""The rule by which an answer of the HTTP API is made from a record: sources, types, order, and its refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gangline.domain.state import State
from services.gateway.http.answer import Answer


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    at: float = 0.0
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    id: int
    owner: str = "ann"
    hyperparameters_json: str = "{}"
    notes_json: tuple[str, ...] = ()
    created_at: float = 1.0
    lost_at: float | None = None
    until_at: float = 0.0
    since: float = 2.0
    loss: float | None = None
    state: State | None = None
    parts: tuple[Part, ...] = ()
    newest: Part | None = None
    bytes_by_path: Mapping[str, int] = field(default_factory=dict)
    secret: str = ""

    @property
    def num_parts(self) -> int:
        return len(self.parts)


@dataclass(frozen=True, slots=True)
class Outer:
    whole: Whole
    changes_json: str = ""


@dataclass(frozen=True, slots=True)
class Flat:
    outer: Outer


@dataclass(frozen=True, slots=True)
class Unanswered:
    id: int


@dataclass(frozen=True, slots=True)
class Outside:
    inside: Unanswered


class PartAnswer(Answer, record=Part, shows="name time=at"): ...


class WholeAnswer(
    Answer,
    record=Whole,
    shows="num_parts id username hparams notes start_time lost_time until since loss is_open state parts newest "
    "bytes_by_path",
):
    is_open: bool = True
    further: int = 3


class OuterAnswer(Answer, record=Outer): ...


class FlatAnswer(Answer, record=Flat, shows="id=outer.whole.id note=outer.changes_json since=outer.whole.since"): ...


def as_json(answer: type[Answer], record: object) -> dict[str, Any]:
    document = json.loads(answer.model_validate(record).model_dump_json(by_alias=True))
    assert isinstance(document, dict)
    return document


def test_sources_types_and_order_follow_from_the_record() -> None:
    part = Part("first", 60.0, "hidden")
    whole = Whole(
        7, "bea", '{"lr": NaN}', ('{"a": 1}', "no JSON"), 3600.5, 0.0, 1e300, 2.0, math.nan, State.RUNNING, (part,),
        None, {"a/b_c": 3},
    )  # fmt: skip
    assert list(as_json(WholeAnswer, whole).items()) == [
        ("numParts", 1),
        ("id", 7),
        ("username", "bea"),
        ("hparams", {"lr": None}),
        ("notes", [{"a": 1}, None]),
        ("startTime", "1970-01-01T01:00:00.500000Z"),
        ("lostTime", None),
        ("until", None),
        ("since", "1970-01-01T00:00:02Z"),
        ("loss", None),
        ("isOpen", True),
        ("state", "RUNNING"),
        ("parts", [{"name": "first", "time": "1970-01-01T00:01:00Z"}]),
        ("newest", None),
        ("bytesByPath", {"a/b_c": 3}),
        ("further", 3),
    ]


def test_an_answer_that_names_no_fields_shows_all_of_them() -> None:
    document = as_json(OuterAnswer, Outer(Whole(1), '{"a": 1}'))
    assert list(document) == ["whole", "changes"]
    assert (document["whole"]["id"], document["changes"]) == (1, {"a": 1})


def test_a_dotted_source_is_read_inside_of_the_record() -> None:
    document = as_json(FlatAnswer, Flat(Outer(Whole(5), "[1]")))
    assert document == {"id": 5, "note": [1], "since": "1970-01-01T00:00:02Z"}


def test_the_types_are_described_as_they_are() -> None:
    schema = WholeAnswer.model_json_schema(mode="serialization")
    properties = schema["properties"]
    time = {"anyOf": [{"format": "date-time", "type": "string"}, {"type": "null"}]}
    assert properties["startTime"] == {**time, "title": "Starttime"}
    assert properties["parts"] == {"items": {"$ref": "#/$defs/PartAnswer"}, "title": "Parts", "type": "array"}
    assert properties["newest"] == {"anyOf": [{"$ref": "#/$defs/PartAnswer"}, {"type": "null"}]}
    assert properties["bytesByPath"]["additionalProperties"] == {"type": "integer"}
    assert "type" not in properties["hparams"]
    # A field is required, whatever the record's default is, unless the answer gives it one itself.
    assert set(properties) - set(schema["required"]) == {"isOpen", "further"}


def test_a_field_without_a_source_is_refused() -> None:
    with pytest.raises(LookupError, match="Part has nothing that 'finish_time' could show; name its source"):

        class Wrong(Answer, record=Part, shows="name finish_time"): ...


def test_a_record_without_an_answer_is_refused() -> None:
    with pytest.raises(LookupError, match="Unanswered"):

        class Wrong(Answer, record=Outside): ...


def test_a_record_has_one_answer() -> None:
    """Another record that contains it could not know which one to show."""
    with pytest.raises(AssertionError):

        class Second(Answer, record=Part): ...
