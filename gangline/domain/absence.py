"""PURE: the line for what does not exist, and where to look for what does.

Gateway, scheduler and commands say it alike. What only one of them knows better (the agents there are) it says itself.
"""

from __future__ import annotations

from gangline.errors import GanglineError, not_found

_LISTED_BY = {
    "experiment": "gangline experiment list",
    "checkpoint": "gangline checkpoint list",
    "agent": "gangline agent list",
}


def absent(name: str, record_id: int | str) -> GanglineError:
    """The error `<name>.not_found`. name: of any record, also of one that no command lists."""
    listed_by = _LISTED_BY.get(name, "")
    if name == "trial":
        listed_by = f"gangline experiment trials {str(record_id).partition('.')[0]}"
    advice = f"; list them with: {listed_by}" if listed_by else ""
    return not_found(f"{name}.not_found", f"there is no {name} {record_id}{advice}")
