"""PURE: completes the OpenAPI description of the HTTP interface with what the routes do not declare.

These are the token, which admission asks for before any route; the form of errors; event streams; examples. The
application serves the result at /openapi.json and shows it at /docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
}
_JSON, _PROBLEM, _EVENTS = "application/json", "application/problem+json", "text/event-stream"


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
