"""PURE: what a configuration says beyond the defaults, as YAML for a person to read.

Owns no rule of the configuration. Called by the CLI, which would else show hundreds of lines of which a user wrote ten.
"""

from __future__ import annotations

import json

import yaml
from pydantic import ValidationError

from gangline.config.experiment import ExperimentConfig


def describe_config(config_json: str) -> str:
    """YAML without what stands at its default; all of it where another version of Gangline has stored what this one
    cannot read. Submitted again, it is the same experiment."""
    try:
        values = ExperimentConfig.model_validate_json(config_json).model_dump(mode="json", exclude_defaults=True)
    except ValidationError:
        values = json.loads(config_json or "{}")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip("\n")
