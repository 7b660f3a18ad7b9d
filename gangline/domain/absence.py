"""PURE: the error for a record that does not exist, with the command that lists those that do.

Gateway, scheduler and commands share its sentence. A caller that knows more, such as the names of the existing agents,
makes an error of its own.
"""

from __future__ import annotations

from gangline.errors import GanglineError, not_found

_LISTED_BY = {
    "experiment": "gangline experiment list",
    "checkpoint": "gangline checkpoint list",
    "agent": "gangline agent list",
}


def absent(name: str, record_id: int | str) -> GanglineError:
    """Makes the error `<name>.not_found`. name: of any record, also of one that no command lists."""
    listed_by = _LISTED_BY.get(name, "")
    if name == "trial":
        listed_by = f"gangline experiment trials {str(record_id).partition('.')[0]}"
    advice = f"; list them with: {listed_by}" if listed_by else ""
    return not_found(f"{name}.not_found", f"there is no {name} {record_id}{advice}")
