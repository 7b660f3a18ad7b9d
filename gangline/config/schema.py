"""PURE: a configuration for other readers: its JSON schema for editors, and its differences from the defaults as
YAML."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import ValidationError

from gangline.config.experiment import ExperimentConfig
from gangline.config.optimization import HOOKS
from gangline.domain.settled.reading import load_document

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


def describe_config(config_json: str) -> str:
    """Returns YAML without default values. A configuration of another version that this version cannot read is shown
    whole, also where it is no JSON. Submitted again, the text makes the same experiment."""
    try:
        values = ExperimentConfig.model_validate_json(config_json).model_dump(mode="json", exclude_defaults=True)
    except ValidationError:
        try:
            values = load_document(config_json)
        except ValueError:
            return config_json
    section = values.get("parallelism")
    if isinstance(section, dict) and list(section) == ["strategy"]:
        values["parallelism"] = section["strategy"]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip("\n")
