"""The only map between protos and the domain.

A domain record and its message have the same name and the same field names, so one generic mapping serves all of them.
Enums map by name,
tuples to repeated fields, mappings to maps, and None to an absent or unspecified field. An unspecified enum without
None maps to the record's default. The module opens no connection. Its only state are the message class and the field
plan that it derives once for each record class.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, cast

from google.protobuf.message import Message

from gangline.domain.state import ReasonCode
from gangline.v1 import types_pb2

# Where a record's message is looked for. Each is loaded when a record is in none before it. A rank's are in the first
# two, so a rank never loads the messages of the gateway.
_MODULES = (
    "types_pb2", "ingest_pb2", "gateway_pb2", "project_pb2", "registry_pb2", "user_pb2", "quota_pb2", "access_pb2",
    "audit_pb2",
)  # fmt: skip
# The records that are not called like their message.
_MESSAGE_NAMES = {"ClusterView": "GetClusterResponse"}

T = typing.TypeVar("T")
E = typing.TypeVar("E", bound=StrEnum)
Setter = Callable[[Any, Any], None]
Getter = Callable[[Any], Any]
# Name, setter, getter, and whether the field may be None.
FieldPlan = tuple[str, Setter, Getter, bool]


def to_proto(record: Any) -> Any:
    """Returns the message that holds the same as this domain record."""
    record_type = type(record)
    message = _message_of(record_type)()
    for name, setter, _, has_presence in _plan_of(record_type):
        value = getattr(record, name)
        # Most fields of most records are empty, which is what a message's field without presence is before it is set.
        if value or (has_presence and value is not None):
            setter(message, value)
    return message


def from_proto(record_type: type[T], message: Any) -> T:
    """Returns the domain record of the given type that holds the same as this message."""
    return record_type(**{name: getter(message) for name, _, getter, _ in _plan_of(record_type)})


def prepare(*record_types: type) -> None:
    """Derives the field plans of these record types now. Processes that fork others call it, because each fork would
    otherwise derive them again."""
    for record_type in record_types:
        _plan_of(record_type)


def encode(record: Any) -> bytes:
    """Returns the bytes that etcd stores for a domain record."""
    payload: bytes = to_proto(record).SerializeToString(deterministic=True)
    return payload


def decode(record_type: type[T], payload: bytes) -> T:
    """Reads what `encode` wrote. Raises google.protobuf's DecodeError for other bytes."""
    return from_proto(record_type, _message_of(record_type).FromString(payload))


def enum_number(member: StrEnum) -> int:
    """Returns the proto number of a domain enum's member."""
    return _numbers(type(member))[member]


def enum_member(enum_type: type[E], number: int) -> E | None:
    """Returns the domain member for a proto number; None for unspecified and for numbers from a newer version."""
    return cast("E | None", _members(enum_type).get(number))


@cache
def _numbers(enum_type: type[StrEnum]) -> dict[StrEnum, int]:
    prefix = "".join("_" + letter if letter.isupper() else letter.upper() for letter in enum_type.__name__).lstrip("_")
    descriptor = _enum_descriptor(enum_type.__name__)
    return {member: descriptor.values_by_name[f"{prefix}_{member.value}"].number for member in enum_type}


def _enum_descriptor(name: str) -> Any:
    """Returns the descriptor of an enum, which is looked for as messages are."""
    found = types_pb2.DESCRIPTOR.enum_types_by_name.get(name)
    return found or import_module("gangline.v1.access_pb2").DESCRIPTOR.enum_types_by_name[name]


@cache
def _members(enum_type: type[StrEnum]) -> dict[int, StrEnum]:
    return {number: member for member, number in _numbers(enum_type).items()}


def _message_of(record_type: type) -> type[Message]:
    return _message(cast("Any", record_type))


@cache
def _message(record_type: type) -> type[Message]:
    name = _MESSAGE_NAMES.get(record_type.__name__, record_type.__name__)
    for module in _MODULES:
        message_type = getattr(import_module(f"gangline.v1.{module}"), name, None)
        if message_type is not None:
            return cast("type[Message]", message_type)
    raise LookupError(f"no message is called {name}")


def _plan_of(record_type: type) -> tuple[FieldPlan, ...]:
    return _plan(cast("Any", record_type))


@cache
def _plan(record_type: type) -> tuple[FieldPlan, ...]:
    """Returns name, setter, getter, and whether its message tells an empty value from an absent one."""
    described = _message_of(record_type).DESCRIPTOR.fields_by_name
    hints = typing.get_type_hints(record_type)
    record_fields: list[Field[Any]] = list(fields(record_type))
    return tuple(
        (
            field.name,
            *_field_plan(field.name, hints[field.name], field.default),
            described[field.name].has_presence,
        )
        for field in record_fields
    )


def _field_plan(name: str, hint: Any, default: Any) -> tuple[Setter, Getter]:
    is_optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if is_optional:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        return _repeated_plan(name, typing.get_args(hint)[0])
    if typing.get_origin(hint) is Mapping:
        return (lambda m, v: getattr(m, name).update(v), lambda m: dict(getattr(m, name)))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        plan = _enum_plan(name, hint, None if default is MISSING else default, is_optional)
        return _exact_plan(name, hint, plan) if hint is ReasonCode and name == "code" else plan
    if is_dataclass(hint):
        return _record_plan(name, cast("type", hint), is_optional)
    if is_optional:
        return (
            lambda m, v: setattr(m, name, v),
            lambda m: getattr(m, name) if m.HasField(name) else None,
        )
    return (lambda m, v: setattr(m, name, v), attrgetter(name))


def _repeated_plan(name: str, item: Any) -> tuple[Setter, Getter]:
    if is_dataclass(item):
        item_type = cast("type", item)
        return (
            lambda m, v: getattr(m, name).extend(to_proto(entry) for entry in v),
            lambda m: tuple(from_proto(item_type, entry) for entry in getattr(m, name)),
        )
    if isinstance(item, type) and issubclass(item, StrEnum):
        return _repeated_enum_plan(name, item)
    return (lambda m, v: getattr(m, name).extend(v), lambda m: tuple(getattr(m, name)))


def _repeated_enum_plan(name: str, item: type[StrEnum]) -> tuple[Setter, Getter]:
    def get(message: Any) -> tuple[StrEnum, ...]:
        # A number from a newer version has no member; every member that this version knows stays.
        members = (enum_member(item, number) for number in getattr(message, name))
        return tuple(member for member in members if member is not None)

    return (lambda m, v: getattr(m, name).extend(map(enum_number, v)), get)


def _enum_plan(name: str, hint: type[StrEnum], default: Any, is_optional: bool) -> tuple[Setter, Getter]:
    def get(message: Any) -> StrEnum | None:
        number = getattr(message, name)
        # A peer or a record from before this field existed has the number for unspecified.
        member = enum_member(hint, number) if number else default
        if member is None and not is_optional:
            raise ValueError(f"{type(message).__name__}.{name} holds {number}, no {hint.__name__}")
        return cast("StrEnum | None", member)

    return (lambda m, v: setattr(m, name, enum_number(v)), get)


def _exact_plan(name: str, hint: type[StrEnum], plan: tuple[Setter, Getter]) -> tuple[Setter, Getter]:
    """Maps a member that is later than the first version to two fields: to the member's general one, which every
    version knows, and to the field exact_<name>. A reader that does not know the exact one takes the general one."""
    set_general, get_general = plan
    exact_name = f"exact_{name}"

    def set_both(message: Any, member: Any) -> None:
        set_general(message, member.general)
        if member.general is not member:
            setattr(message, exact_name, enum_number(member))

    return (set_both, lambda m: enum_member(hint, getattr(m, exact_name)) or get_general(m))


def _record_plan(name: str, hint: type, is_optional: bool) -> tuple[Setter, Getter]:
    def get(message: Any) -> Any:
        if is_optional and not message.HasField(name):
            return None
        return from_proto(hint, getattr(message, name))

    return (lambda m, v: getattr(m, name).CopyFrom(to_proto(v)), get)
