"""Describes the HTTP interface in the OpenAPI document.

`Described` describes the fields of models by the comments that stand behind the fields in the source. The comment of a
field is on its line, or on the lines above it. A property has the first sentence of its docstring. A comment names
values of Python, and the description those of JSON. The source is read when a schema is made, so neither the start of a
gateway nor an answer takes longer.

`complete` adds what the routes do not declare: the token, which admission asks for before any route; the form of
errors; event streams; examples. The application serves the result at /openapi.json and shows it at /docs.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

from pydantic import AliasChoices, AliasPath, BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_SUPPRESSION = re.compile(r"noqa\b|type: ignore\b|fmt: ")
# Python's words and JSON's.
_WORDS = {"None": "null", "True": "true", "False": "false"}
# By the name of a parameter in a path. One that is a number needs none: its example is 1.
PATH_EXAMPLES = {
    "table": "experiments",
    "trial_id": "1.1",
    "agent_id": "gpu-host-1",
    "job_id": 1,
    "slot_id": "gpu-host-1/0",
    "checkpoint_id": "2b1b6f4e-0d0a-4c1c-9a55-9f0c0a8f1d11",
    "code_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "path": "trainer.pth",
    "view_id": "5f0c1d7a9b3e4c62a1d8e07f4b9c2d36",
    "name": "four-slots",
    "alias": "champion",
    "key": "a" * 64,
    "kind": "user",
    "subject": "ann",
}
_JSON, _PROBLEM, _EVENTS = "application/json", "application/problem+json", "text/event-stream"


class Described(BaseModel):
    # The record that an answer shows; None for all other models.
    shown_record: ClassVar[type | None] = None

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        properties = handler.resolve_ref_schema(reference).get("properties", {})
        for name, field in cls.model_fields.items():
            text = _comment_of(cls, name, field.validation_alias)
            if text:
                text = _in_json(text, field.annotation)
                properties[field.serialization_alias or name].setdefault("description", text)
        return reference


def _comment_of(model: type[Described], name: str, source: str | AliasPath | AliasChoices | None) -> str:
    """Returns the comment of a field; empty without one. The model's own comment precedes that of the record."""
    own = [text for each in model.__mro__ if (text := comments_of(each).get(name))]
    if own or model.shown_record is None:
        return own[0] if own else ""
    path: list[Any] = source.path if isinstance(source, AliasPath) else [source or name]
    owner: Any = model.shown_record
    for step in path[:-1]:
        owner = inspect.get_annotations(owner, eval_str=True)[step]
    return comments_of(owner).get(path[-1], "")


def _in_json(comment: str, annotation: Any) -> str:
    """Returns the description of a field with this comment. A record has 0 for a time that it does not have, and an
    empty text for a document."""
    words = _WORDS
    if annotation == datetime | None:
        words = words | {"0": "null"}
    elif annotation is Any:
        words = words | {"empty": "null"}
    text = re.sub(rf"(?<![\w\"])({'|'.join(words)})(?![\w\"])", lambda match: words[match[0]], comment)
    first = re.match(r"[a-z]+(?=[ ,;]|$)", text)
    return text if first is None or first[0] in _WORDS.values() else text[0].upper() + text[1:]


@cache
def comments_of(owner: type) -> dict[str, str]:
    """Returns the comments of a class of ours by the names of its fields and properties. Returns none without its
    source."""
    return _comments_by_class(owner.__module__).get(owner.__qualname__, {})


@cache
def _comments_by_class(module: str) -> dict[str, dict[str, str]]:
    if module.partition(".")[0] not in ("gangline", "services"):
        return {}
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    lines = source.splitlines()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_comments(node, lines)) for node in classes}


def _comments(node: ast.ClassDef, lines: list[str]) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            sentence = " ".join((ast.get_docstring(each) or "").split()).partition(". ")[0]
            yield each.name, sentence.removeprefix("Returns ").removesuffix(".")
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id, _behind(each, lines) or _above(each, lines)


def _behind(node: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment on the last line of a field. ast counts columns in bytes."""
    rest = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode()
    comment = rest.strip().lstrip("#").strip()
    return "" if _SUPPRESSION.match(comment) else comment


def _above(node: ast.AnnAssign, lines: list[str]) -> str:
    comments: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        comments.insert(0, line.strip().lstrip("#").strip())
    return " ".join(comments)


def complete(schema: dict[str, Any], body_examples: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same schema, completed. body_examples: by the name of a request body."""
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    # FastAPI's own form of a refusal, which the problem document replaces.
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            _complete_answers(path, operation)
            _add_examples(operation, body_examples)
    return schema


def _complete_answers(path: str, operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    answers.pop("422", None)
    problem = answers["default"]["content"]
    problem[_PROBLEM] = problem.pop(_JSON)
    follows = any(parameter["name"] == "follow" for parameter in operation.get("parameters", ()))
    if follows or path.endswith("/events"):
        answers["200"].setdefault("content", {})[_EVENTS] = {}


def _add_examples(operation: dict[str, Any], body_examples: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            is_number = parameter["schema"].get("type") == "integer"
            parameter["example"] = 1 if is_number else PATH_EXAMPLES[parameter["name"]]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = _name_of(content["schema"])
        content["example"] = body_examples[name]


def _name_of(schema: dict[str, Any]) -> str:
    """Returns the name of a body's model. An optional body is one of two, of which the other is null."""
    reference: str = schema.get("$ref") or schema["anyOf"][0]["$ref"]
    return reference.rpartition("/")[2]
