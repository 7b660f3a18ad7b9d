"""PURE: completes the OpenAPI description of the HTTP interface with what the routes do not declare.

These are the token, which admission asks for before any route; the form of errors; event streams; examples. The
application serves the result at /openapi.json and shows it at /docs.
"""

from __future__ import annotations

from typing import Any

# By the name of a request body.
BODY_EXAMPLES: dict[str, Any] = {
    "CreateExperiment": {
        "config": "name: digits\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n",
        "codeSha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "requestId": "create-digits-1",
    },
    "PatchExperiment": {"name": "digits, long", "labels": ["night"]},
    "ContinueBody": {"overrides": {"searcher.max_length.batches": 2000}},
    "PreviewSearch": {
        "config": "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n",
        "limit": 5,
    },
    "UpdateJobQueue": {"updates": [{"jobId": 1, "priority": 10}]},
    "RetainLogs": {"numDays": 30},
    "Disable": {"drain": True},
    "DeleteCheckpoints": {"checkpointUuids": ["2b1b6f4e-0d0a-4c1c-9a55-9f0c0a8f1d11"]},
    "ProfileTrial": {"batches": 10},
    "WorkspaceBody": {"name": "lab"},
    "ProjectBody": {"name": "vision"},
    "MoveBody": {"destinationProjectId": 2},
    "NewUserBody": {"user": {"username": "ann"}, "password": "a-good-password"},
    "UserBody": {"displayName": "Ann"},
    "NewTokenBody": {"description": "nightly", "lifespan": "720h"},
    "NewSession": {"username": "ann", "password": "a-good-password"},
    "TokenBody": {"setRevoked": True},
    "TemplateBody": {"config": "resources: {slots_per_trial: 4}\n"},
}
# By the name of a parameter in a path.
PATH_EXAMPLES = {
    "experiment_id": 1,
    "trial_id": "1.1",
    "agent_id": "gpu-host-1",
    "slot_id": "gpu-host-1/0",
    "job_id": 1,
    "checkpoint_id": "2b1b6f4e-0d0a-4c1c-9a55-9f0c0a8f1d11",
    "code_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "path": "trainer.pth",
    "workspace_id": 1,
    "project_id": 1,
    "user_id": 1,
    "token_id": 1,
    "name": "four-slots",
    "key": "a" * 64,
}
_JSON, _PROBLEM, _EVENTS = "application/json", "application/problem+json", "text/event-stream"


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the same schema, completed."""
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    # FastAPI's own form of a refusal, which the problem document replaces.
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            _complete_answers(path, operation)
            _add_examples(operation)
    return schema


def _complete_answers(path: str, operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    answers.pop("422", None)
    problem = answers["default"]["content"]
    problem[_PROBLEM] = problem.pop(_JSON)
    follows = any(parameter["name"] == "follow" for parameter in operation.get("parameters", ()))
    if follows or path.endswith("/events"):
        answers["200"].setdefault("content", {})[_EVENTS] = {"schema": {"type": "string"}}


def _add_examples(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["example"] = PATH_EXAMPLES[parameter["name"]]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = _name_of(content["schema"])
        content["example"] = BODY_EXAMPLES[name]


def _name_of(schema: dict[str, Any]) -> str:
    """Returns the name of a body's model. An optional body is one of two, of which the other is null."""
    reference: str = schema.get("$ref") or schema["anyOf"][0]["$ref"]
    return reference.rpartition("/")[2]
