"""PURE: the JSON schema of an experiment's configuration, for editors that complete and check YAML."""

from __future__ import annotations

from typing import Any

from gangline.config.experiment import ExperimentConfig
from gangline.config.optimization import HOOKS

_LENGTH_AS_NUMBER = {"type": "integer", "minimum": 0, "description": "batches"}


def export_schema() -> dict[str, Any]:
    """Returns JSON schema 2020-12. It allows the short forms that the models accept beside the long ones."""
    schema = ExperimentConfig.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    _allow(definitions, "Length", _LENGTH_AS_NUMBER)
    _allow(definitions, "Parallelism", {"$ref": "#/$defs/Parallelism/anyOf/0/properties/strategy"})
    _allow(definitions, "Compression", {"enum": [True, False, *HOOKS]})
    _allow(definitions, "EnvironmentVariables", {"type": "array", "items": {"type": "string"}})
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Gangline experiment"
    return schema


def _allow(definitions: dict[str, Any], name: str, short: dict[str, Any]) -> None:
    definitions[name] = {"anyOf": [definitions[name], short]}
