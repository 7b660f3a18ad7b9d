"""Removes what an ended trial runner may have left besides processes: a container, and the control groups of its
ranks.

A runner that ends in order has removed them itself. The lifecycle calls this after every end.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import structlog

from gangline.errors import GanglineError
from services.agent.allocations.folder import AllocationFolder
from services.common import rank_cgroup
from services.common.container_program import remove_container
from services.common.rank_rules import load_rules

log = structlog.get_logger(__name__)


async def remove_leftovers(folder: AllocationFolder) -> None:
    """Tolerates: nothing is left, which is the usual case."""
    container = folder.load_container()
    if container is not None and await remove_container(*container):
        folder.forget_container()
    if container is not None:
        shutil.rmtree(folder.registry_path, ignore_errors=True)
    try:
        cgroup = load_rules(folder.state.path).cgroup
    except GanglineError as error:
        log.error("cannot look for control groups of an ended trial", error=error.message)
        return
    if cgroup:
        rank_cgroup.remove_all(Path(cgroup), folder.allocation_id)
