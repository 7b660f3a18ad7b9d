"""The configuration of an experiment: models of the YAML, the parser with readable errors, and checks before an upload.

Imports pydantic and PyYAML, nothing of the cluster. Each section has a module of its own; this module exports what
other packages use.

Start: experiment.py
"""

from gangline.config.batch import BatchSplit, split_batch
from gangline.config.code_check import check_code
from gangline.config.experiment import ExperimentConfig
from gangline.config.hyperparameter import sample as sample_hyperparameters
from gangline.config.merge import parse_overrides
from gangline.config.parallelism import Parallelism
from gangline.config.parse import (
    check_config,
    check_patterns,
    fork_config,
    named_home,
    parse_config,
    read_config,
)
from gangline.config.resource import check_resource_change
from gangline.config.schema import describe_config, export_schema
from gangline.config.searcher import Length
from gangline.domain.entrypoint import Command, Entrypoint, Module, Script, TrialClass, parse_entrypoint

__all__ = [
    "BatchSplit",
    "Command",
    "Entrypoint",
    "ExperimentConfig",
    "Length",
    "Module",
    "Parallelism",
    "Script",
    "TrialClass",
    "check_code",
    "check_config",
    "check_patterns",
    "check_resource_change",
    "describe_config",
    "export_schema",
    "fork_config",
    "named_home",
    "parse_config",
    "parse_entrypoint",
    "parse_overrides",
    "read_config",
    "sample_hyperparameters",
    "split_batch",
]
