"""The base of all answers of the HTTP API, and the rule by which an answer is made from a record of the domain.

`class Trial(Answer, record=experiment.Trial, shows="id hparams start_time batches=batches_completed")` shows four
fields of the record, in this order. Without `shows` an answer has all of them. A field that the class declares itself
replaces the rule's. `Trial.model_validate(trial)` reads the attributes of the record. A record has one answer,
which has the record's docstring if it has none itself.

The source of a field is the attribute of its name. If the record has none, the source is the attribute with `_json` or
`_at` appended, the one with `_at` in place of `_time`, or the one in `_SOURCES`. `name=source` names any other, also a
dotted one. The type follows from the source: `*_json` becomes a document, Unix seconds become a time of RFC 3339 (null
where the event has not happened), a record is shown by its own answer, and a tuple becomes a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, reduce
from inspect import get_annotations
from operator import or_
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import AliasGenerator, AliasPath, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gangline.domain.document import read_document
from services.gateway.http.description import Described

# By the name of a field, as Determined's REST API has it.
_SOURCES = {
    "username": "owner",
    "hparams": "hyperparameters_json",
    "start_time": "created_at",
    "end_time": "ended_at",
}
# Names of times, beside those that end in `_at`.
_TIMES = frozenset({"at", "since", "until"})


def _instant(seconds: Any) -> datetime | None:
    """Returns the time; None also for a number that is no time, which earlier versions stored as it was reported."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def _document(text: Any) -> Any:
    return read_document(text) if text else None


Instant = Annotated[datetime | None, BeforeValidator(_instant)]
Document = Annotated[Any, BeforeValidator(_document)]


class Answer(Described):
    # JSON has no NaN and no infinities; they become null.
    model_config = ConfigDict(
        from_attributes=True,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
        ser_json_inf_nan="null",
        protected_namespaces=(),
    )

    def __init_subclass__(cls, *, record: type | None = None, shows: str = "") -> None:
        """Declares the fields that the rule gives; pydantic collects the fields of a class after this call. Raises
        LookupError for a field without a source, and for a nested record without an answer."""
        if record is None:
            return
        declared = get_annotations(cls)
        annotations: dict[str, Any] = {}
        for shown in shows.split() or [name.removesuffix("_json") for name in _hints(record)]:
            name, _, given = shown.partition("=")
            if name in declared:
                annotations[name] = declared[name]
                continue
            source = given or _source_of(record, name)
            annotations[name] = _answer_type(record, source)
            if source != name:
                setattr(cls, name, Field(validation_alias=AliasPath(*source.split("."))))
        cls.__annotations__ = annotations | declared
        cls.shown_record = record
        # A dataclass without a docstring gets its signature as one.
        if cls.__doc__ is None and not str(record.__doc__).startswith(f"{record.__name__}("):
            cls.__doc__ = record.__doc__
        assert record not in _answers
        _answers[record] = cls


# By the record that an answer shows.
_answers: dict[type, type[Answer]] = {}


@cache
def _hints(record: type) -> dict[str, Any]:
    """Returns the types of the record's fields, in their order."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)}


def _source_of(record: type, name: str) -> str:
    names = (name, f"{name}_json", f"{name}_at", f"{name.removesuffix('_time')}_at", _SOURCES.get(name, ""))
    for source in names:
        if source in _hints(record) or isinstance(getattr(record, source, None), property):
            return source
    raise LookupError(f"{record.__qualname__} has nothing that {name!r} could show; name its source")


def _answer_type(record: type, source: str) -> Any:
    """Returns the type of the field that shows this attribute of the record."""
    first, _, further = source.partition(".")
    hint = _hints(record).get(first) or get_type_hints(getattr(record, first).fget)["return"]
    if further:
        return _answer_type(hint, further)
    if source.endswith("_json"):
        return list[Document] if get_origin(hint) is tuple else Document
    if source.endswith("_at") or source in _TIMES:
        return Instant
    return _json_type(hint)


def _json_type(hint: Any) -> Any:
    """Returns the type that shows a value of this type."""
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, map(_json_type, get_args(hint)))
    if get_origin(hint) is tuple:
        return GenericAlias(list, _json_type(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return GenericAlias(dict, get_args(hint))
    return _answers[hint] if isinstance(hint, type) and is_dataclass(hint) else hint
