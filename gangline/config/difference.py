"""PURE: a configuration's differences from the defaults, as readable YAML.

Owns no rule of the configuration. The CLI calls it; without it a description would have hundreds of lines for the ten
that a user wrote.
"""

from __future__ import annotations

import json

import yaml
from pydantic import ValidationError

from gangline.config.experiment import ExperimentConfig


def describe_config(config_json: str) -> str:
    """Returns YAML without default values. A configuration of another version that this version cannot read is shown
    whole. Submitted again, the text makes the same experiment."""
    try:
        values = ExperimentConfig.model_validate_json(config_json).model_dump(mode="json", exclude_defaults=True)
    except ValidationError:
        values = json.loads(config_json or "{}")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip("\n")
