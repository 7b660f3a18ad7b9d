"""PURE: settings that a configuration can have and this version does not carry out, and names that it may not have.

NO_EFFECT lists keys that are accepted with a warning. find_unsupported refuses settings without which another training
would run than the user asked for. A new feature deletes its line here and needs no other change in this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gangline.config.batch import find_bad_batch_size
from gangline.config.complaint import Complaint, Path
from gangline.config.container import find_bad_container, find_without_image
from gangline.config.elastic import find_size_conflict, find_spread_conflict
from gangline.config.experiment import ExperimentConfig
from gangline.config.hyperparameter import find_undrawable
from gangline.config.resource import Resources
from gangline.domain.entrypoint import launcher_options, refused_launcher
from gangline.printable import find_unprintable

_CONTAINER = "a trial uses the network and the devices of its machine"
_LATER = "not built yet"

NO_EFFECT: dict[str, str] = {
    "checkpoint_storage.type": "checkpoints go to the cluster's storage URL",
    "data_layer": "the trial loads its own data",
    "debug": "every log line is kept",
    "environment.pod_spec": "there is no Kubernetes",
    "environment.ports": _CONTAINER,
    "environment.proxy_ports": _CONTAINER,
    "integrations": _LATER,
    "internal": "it belongs to Determined's own harness",
    "optimizations.grad_updates_size_file": "it belongs to Horovod",
    "optimizations.tensor_fusion_cycle_time": "buckets are sent as soon as they are full, there is no cycle",
    "pbs": "Gangline schedules by itself",
    "records_per_epoch": "an epoch is once through the trial's own data loader",
    "resources.agent_label": "choose agents with resources.resource_pool",
    "resources.devices": _CONTAINER,
    "resources.native_parallel": "it was removed from Determined",
    "resources.slots": "it is for commands; use resources.slots_per_trial",
    "security": "it belongs to Determined's own harness",
    "slurm": "Gangline schedules by itself",
    "tensorboard_storage": "TensorBoard files go to the cluster's storage URL",
}


def find_ineffective(config: ExperimentConfig) -> list[str]:
    """Returns a warning for each key without effect that has another value than its default."""
    return [
        *_ignored_options(config),
        *(
            f"{path}: accepted, but has no effect here ({why})"
            for path, why in NO_EFFECT.items()
            if _is_changed(config, path)
        ),
        *find_without_image(config),
    ]


def _ignored_options(config: ExperimentConfig) -> list[str]:
    options = launcher_options(config.entrypoint)
    if not options:
        return []
    why = "the trial runner starts one rank in each slot and connects them"
    return [f"entrypoint: {', '.join(options)}: accepted, but without effect here ({why})"]


def find_unsupported(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about the first setting that must be refused, because ignoring it would run another
    experiment than the described one. Patterns are not compiled here, because the scheduler calls this as well."""
    return (
        _find_refused_launcher(config)
        or find_bad_batch_size(config.hyperparameters)
        or _find_undrawable(config)
        or find_spread_conflict(config)
        or find_size_conflict(config)
        or _find_impossible(config.resources)
        or find_bad_container(config)
    )


def _find_refused_launcher(config: ExperimentConfig) -> Complaint | None:
    text = refused_launcher(config.entrypoint)
    return None if text is None else Complaint("invalid_value", ("entrypoint",), text)


def _find_undrawable(config: ExperimentConfig) -> Complaint | None:
    undrawable = find_undrawable(config.hyperparameters)
    return (
        None if undrawable is None else Complaint("invalid_value", ("hyperparameters", *undrawable[0]), undrawable[1])
    )


def _find_impossible(resources: Resources) -> Complaint | None:
    limit, slots = resources.max_slots, resources.slots_per_trial
    if limit is None or limit >= slots:
        return None
    text = f"{limit} is below the {slots} slots of one trial, so none could ever start; use at least {slots}"
    return Complaint("invalid_value", ("resources", "max_slots"), text)


def _is_changed(config: ExperimentConfig, path: str) -> bool:
    *sections, key = path.split(".")
    section: BaseModel = config
    for name in sections:
        section = getattr(section, name)
    default = type(section).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(section, key) != default)


def find_unprintable_name(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about the first name with a character that no name may have.

    Other users' lists, logs and messages show these names. A control character, a newline or a bidirectional control in
    a name could fake or hide the text beside it. Texts that are no names (the description, values, commands) are not
    limited; the code that shows them replaces such characters.
    """
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
