"""PURE: the checks of the settings that describe a trial's container.

They are made at submit, not when a stored configuration is read: an earlier version stored these settings unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator

from gangline.config.complaint import Complaint
from gangline.config.experiment import ExperimentConfig
from gangline.domain.container import find_bad_capability, find_bad_image, find_bad_mount, names_container
from gangline.domain.state import TaskKind

# Settings that change a container and nothing else.
_ONLY_WITH_IMAGE = (
    ("environment", "add_capabilities"),
    ("environment", "drop_capabilities"),
    ("environment", "force_pull_image"),
    ("environment", "registry_auth"),
    ("resources", "shm_size"),
)
_OF_DETERMINED = (
    "environment.image: accepted, but has no effect here (Gangline cannot run in an image of Determined; the trial "
    "runs in the agents' Python, or in that of environment.python)"
)


def find_bad_container(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint about the first setting that no container can have."""
    return next(_complaints(config), None)


def find_without_image(config: ExperimentConfig) -> list[str]:
    """Returns a warning for each setting that has no effect because there is no image."""
    if names_container(config.environment.image):
        return []
    changed = [".".join((section, key)) for section, key in _ONLY_WITH_IMAGE if getattr(getattr(config, section), key)]
    warnings = [f"{path}: accepted, but has no effect without environment.image" for path in changed]
    if config.environment.image:
        warnings.insert(0, _OF_DETERMINED)
    return warnings


def _complaints(config: ExperimentConfig) -> Iterator[Complaint]:
    environment = config.environment
    if environment.image is not None and (problem := find_bad_image(environment.image)):
        yield Complaint("invalid_value", ("environment", "image"), problem)
    has_container = names_container(environment.image)
    if has_container and config.task is not None and config.task.kind is not TaskKind.COMMAND:
        kind = config.task.kind.lower()
        text = f"a {kind} runs in no container; use environment.python, or a command: gangline cmd run"
        yield Complaint("invalid_value", ("environment", "image"), text)
    for key in ("add_capabilities", "drop_capabilities"):
        if problem := find_bad_capability(getattr(environment, key)):
            yield Complaint("invalid_value", ("environment", key), problem)
    for position, mount in enumerate(config.bind_mounts):
        problem = find_bad_mount(mount.host_path, mount.container_path, mount.propagation)
        if problem:
            yield Complaint("invalid_value", ("bind_mounts", position), problem)
        if not has_container and (mount.host_path != mount.container_path or mount.read_only):
            text = "needs environment.image; without a container a trial uses the agent's own path"
            advice = f"read {mount.host_path} there, or name an image"
            yield Complaint("invalid_value", ("bind_mounts", position), f"{text}: {advice}")
