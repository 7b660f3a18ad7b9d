"""PURE: refuses names that would act on a terminal instead of being shown on it.

Other users' lists, logs and messages show these names. A control character, a newline or a bidirectional control in a
name could fake or hide the text beside it. Texts that are no names (the description, values, commands) are not limited;
the code that shows them replaces such characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.config.complaint import Complaint, Path
from gangline.config.experiment import ExperimentConfig
from gangline.printable import find_unprintable


def find_unprintable_name(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about the first name with a character that no name may have."""
    for path, name in _names(config):
        letter = find_unprintable(name)
        if letter is not None:
            text = f"has the control character {letter}; use letters, digits, spaces and signs that can be printed"
            return Complaint("invalid_value", path, text)
    return None


def _names(config: ExperimentConfig) -> Iterator[tuple[Path, str]]:
    yield ("name",), config.name
    yield ("workspace",), config.workspace
    yield ("project",), config.project
    yield ("searcher", "metric"), config.searcher.metric
    yield ("searcher", "time_metric"), config.searcher.time_metric or ""
    yield ("resources", "resource_pool"), config.resources.resource_pool or ""
    for position, label in enumerate(config.labels):
        yield ("labels", position), label
    for position, policy in enumerate(config.log_policies):
        yield ("log_policies", position, "name"), policy.name or ""
    # The path ends above the name, so that it does not carry the character into the message.
    for name in _keys(config.hyperparameters):
        yield ("hyperparameters",), name


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        if isinstance(value, Mapping):
            yield from _keys(value)
