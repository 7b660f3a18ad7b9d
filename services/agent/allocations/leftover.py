"""Removes what an ended trial runner may have left besides processes: the control groups of its ranks.

A runner that ends in order has removed them itself. The lifecycle calls this after every end.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from gangline.errors import GanglineError
from services.agent.allocations.folder import AllocationFolder
from services.common import rank_cgroup
from services.common.rank_rules import load_rules

log = structlog.get_logger(__name__)


async def remove_leftovers(folder: AllocationFolder) -> None:
    """Tolerates: nothing is left, which is the usual case."""
    try:
        cgroup = load_rules(folder.state.path).cgroup
    except GanglineError as error:
        log.error("cannot look for control groups of an ended trial", error=error.message)
        return
    if cgroup:
        rank_cgroup.remove_all(Path(cgroup), folder.allocation_id)
