"""PURE: parses the text of an experiment's YAML into its configuration and warnings, or raises a one-line error.

The CLI and the gateway call parse_config; no other code reads a user's YAML. JSON from clients goes through
check_config in the gateway and in the scheduler, so that both refuse it with the same message.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from gangline.config.batch import split_batch
from gangline.config.bound import check_text, find_unusable, too_deep
from gangline.config.complaint import Complaint, Path, complaints_of, join_path
from gangline.config.doubt import find_doubtful
from gangline.config.effect import find_ineffective, find_unprintable_name, find_unsupported
from gangline.config.experiment import ExperimentConfig
from gangline.config.failure import find_bad_pattern
from gangline.config.hyperparameter import possible_values
from gangline.config.merge import merge, with_overrides
from gangline.config.section import WRITTEN, describe
from gangline.config.yaml_document import Document, parse_document
from gangline.domain.experiment import DEFAULT_PROJECT_ID, ConfigLayer, Inheritance
from gangline.errors import GanglineError, invalid

NOTHING_INHERITED = Inheritance()
NO_OVERRIDES: Mapping[str, Any] = {}


def parse_config(
    text: str, inherited: Inheritance = NOTHING_INHERITED, overrides: Mapping[str, Any] = NO_OVERRIDES
) -> tuple[ExperimentConfig, list[str]]:
    """Returns the configuration with its defaults filled in, and a warning for every setting that is not carried out as
    written. inherited: the settings of workspace, project and template, which the text overrides. overrides: values by
    dotted keys, which win over the text.

    Raises GanglineError: config.syntax, config.too_large, config.duplicate_key, config.unknown_key, config.wrong_type,
    config.missing_key, config.invalid_value, config.batch_too_small, config.not_supported.
    """
    return _read(parse_document(text), inherited, overrides)


def read_config(values: Any, inherited: Inheritance = NOTHING_INHERITED) -> tuple[ExperimentConfig, list[str]]:
    """Reads as parse_config does, for a configuration from a JSON document, which has no lines to name."""
    return _read(Document(values), inherited)


def named_home(config: str | Mapping[str, Any]) -> tuple[str, str]:
    """Returns the names of workspace and project in a configuration that is otherwise unchecked. Raises GanglineError
    `config.*`."""
    values = parse_document(config).values if isinstance(config, str) else config
    names = [values.get(key) if isinstance(values, Mapping) else None for key in ("workspace", "project")]
    # A value of another type is an error of the whole configuration, which names its line.
    workspace, project = (name if isinstance(name, str) else "" for name in names)
    return workspace, project


def fork_config(config_json: str, overrides: Mapping[str, Any]) -> tuple[ExperimentConfig, list[str]]:
    """Returns a stored configuration with other values at some dotted keys, and warnings. Raises GanglineError as
    check_config does, and `config.unknown_key`."""
    config = check_config(json.dumps(with_overrides(json.loads(config_json), overrides)))
    values = json.loads(config.model_dump_json())
    for key, value in overrides.items():
        if value is not None:
            _check_taken(key, values)
    return config, [*_batch_warnings(config), *find_doubtful(config), *find_ineffective(config)]


def _check_taken(key: str, values: Any) -> None:
    """Raises GanglineError `config.unknown_key` for a key that the configuration does not have: a stored configuration
    is read without its unknown keys, because another version may have written it."""
    parts = key.split(".")
    for index, part in enumerate(parts):
        if not isinstance(values, dict) or part not in values:
            nearest = difflib.get_close_matches(part, values if isinstance(values, dict) else (), n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else "gangline experiment schema prints all keys"
            place = ".".join(parts[: index + 1])
            raise invalid("config.unknown_key", f"{place} (--config): unknown key; {advice}")
        values = values[part]


def _read(
    document: Document, inherited: Inheritance, overrides: Mapping[str, Any] = NO_OVERRIDES
) -> tuple[ExperimentConfig, list[str]]:
    if overrides:
        document = replace(document, values=with_overrides(document.values, overrides))
    if inherited.layers and isinstance(document.values, Mapping | None):
        document = _with_layers(document, inherited.layers)
    if overrides:
        paths: list[Path] = [tuple(key.split(".")) for key in overrides]
        own_origins = {path: ("--config", path) for path in paths}
        document = replace(document, origin_by_path={**document.origin_by_path, **own_origins})
    if document.values is None:
        raise invalid("config.wrong_type", "the configuration is empty; it needs at least entrypoint and searcher")
    if not isinstance(document.values, dict):
        description = describe(document.values)
        raise invalid(
            "config.wrong_type", f"the configuration: expected a mapping such as name: ..., found {description}"
        )
    unusable = find_unusable(document.values)
    if unusable is not None:
        raise first_error([unusable], document)
    config = _validate(document)
    unfit = find_unprintable_name(config) or find_unsupported(config) or find_bad_pattern(config.log_policies)
    if unfit is not None:
        raise first_error([unfit], document)
    if inherited.project_id != DEFAULT_PROJECT_ID:
        config = config.model_copy(update={"workspace": inherited.workspace, "project": inherited.project})
    return config, [*_batch_warnings(config), *find_doubtful(config), *find_ineffective(config)]


def _with_layers(document: Document, layers: Sequence[ConfigLayer]) -> Document:
    own_values = document.values or {}
    unusable = find_unusable(own_values)
    if unusable is not None:
        raise first_error([unusable], document)
    merged = merge(layers, own_values)
    origins = {path: (origin.source, origin.path) for path, origin in merged.origin_by_path.items()}
    return Document(merged.values, document.line_by_path, origins)


def check_config(config_json: str) -> ExperimentConfig:
    """Parses and checks a configuration from a client, except its patterns (check_patterns). Raises GanglineError as
    parse_config does, without lines of a text."""
    check_text(config_json)
    try:
        values = json.loads(config_json)
    except ValueError as error:
        raise invalid(
            "config.syntax", "the configuration is no JSON document; check its quotes, commas and brackets"
        ) from error
    except RecursionError as error:
        raise too_deep() from error
    unusable = find_unusable(values)
    if unusable is not None:
        raise _error_without_lines(unusable)
    try:
        config = ExperimentConfig.model_validate_json(config_json)
    except ValidationError as failure:
        raise _error_without_lines(complaints_of(failure, values)[0]) from failure
    unfit = find_unprintable_name(config) or find_unsupported(config)
    if unfit is not None:
        raise _error_without_lines(unfit)
    return config


def check_patterns(config: ExperimentConfig) -> None:
    """Compiles the patterns of a checked configuration from a client, which may take 50 ms. The gateway alone calls it,
    outside of its event loop. Raises GanglineError `config.invalid_value`."""
    unfit = find_bad_pattern(config.log_policies)
    if unfit is not None:
        raise _error_without_lines(unfit)


def _error_without_lines(first: Complaint) -> GanglineError:
    place = join_path(first.path) or "the configuration"
    return invalid(f"config.{first.code}", f"{place}: {first.text}")


def _validate(document: Document) -> ExperimentConfig:
    try:
        return ExperimentConfig.model_validate(document.values, context=WRITTEN)
    except ValidationError as failure:
        raise first_error(complaints_of(failure, document.values), document) from failure


def first_error(complaints: list[Complaint], document: Document) -> GanglineError:
    """Makes the error for the first complaint in the order of the text, with the number of further ones."""
    # pydantic may report one mistake several times, as for each branch of a union.
    one_per_place = {(document.line_of(complaint.path) or 0, complaint.text): complaint for complaint in complaints}
    complaints = [one_per_place[place] for place in sorted(one_per_place)]
    first = complaints[0]
    line = document.line_of(first.path)
    source = f"line {line}" if line else document.source_of(first.path)
    place = f" ({source})" if source else ""
    more = f" (and {len(complaints) - 1} more to correct)" if len(complaints) > 1 else ""
    return invalid(f"config.{first.code}", f"{join_path(first.path)}{place}: {first.text}{more}")


def _batch_warnings(config: ExperimentConfig) -> list[str]:
    sizes: Any = possible_values(config.hyperparameters.get("global_batch_size"))
    if not sizes or len(set(sizes)) > 1 or config.resources.slots_per_trial == 0:
        return []
    slots = config.resources.slots_per_trial
    warning = split_batch(sizes[0], slots, config.parallelism.ranks_per_replica(slots)).warning
    return [warning] if warning else []
