"""The GPUs that were out of use when the agent ended, so that its restart does not bring a faulty one back.

Owns <state-dir>/gpu_health.json. An unreadable file is treated as a missing one, because the next checks find a fault
that still shows. Called by monitor.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import structlog

from services.agent.devices.gpu_health import GpuHealth
from services.common.disk import write_atomic

NAME = "gpu_health.json"

log = structlog.get_logger(__name__)


def load_healths(path: Path) -> dict[str, GpuHealth]:
    """Returns the health of the devices that had a problem, by their UUID."""
    try:
        return {uuid: _parse(entry) for uuid, entry in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("cannot read which GPUs were out of use; going on without", path=str(path), error=str(error))
        return {}


def save_healths(path: Path, healths: Mapping[str, GpuHealth]) -> None:
    """Writes the devices that have a problem. If the disk refuses the write, only the next agent's knowledge is
    lost."""
    entries = {
        uuid: {"problem": health.problem, "reset_below": health.reset_below}
        for uuid, health in healths.items()
        if health.problem
    }
    try:
        write_atomic(path, json.dumps(entries, indent=1) + "\n", mode=0o600)
    except OSError as error:
        log.error("cannot write which GPUs are out of use; going on without", path=str(path), error=str(error))


def _parse(entry: Mapping[str, object]) -> GpuHealth:
    problem, reset_below = entry["problem"], entry["reset_below"]
    if not isinstance(problem, str) or not isinstance(reset_below, int | None):
        raise TypeError(f"{entry} is not the health of a GPU")
    return GpuHealth(problem=problem, reset_below=reset_below)
