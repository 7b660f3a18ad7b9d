"""PURE: the colours of states, one mapping for all lists and for the live view."""

from __future__ import annotations

from gangline.domain.state import AgentState, Availability, CheckpointState, Outcome, State

# The names are those of rich's colours. A word without an entry has the terminal's own colour.
_COLOR_BY_STATE: dict[str, str] = {
    State.QUEUED: "yellow",
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.STOPPING: "magenta",
    State.PAUSED: "yellow",
    Outcome.COMPLETED: "blue",
    Outcome.FAILED: "red",
    Outcome.CANCELED: "bright_black",
    AgentState.ALIVE: "green",
    AgentState.LOST: "red",
    Availability.DRAINING: "yellow",
    Availability.DISABLED: "bright_black",
    CheckpointState.DELETING: "magenta",
}
_CODE_BY_COLOR = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bright_black": 90}


def color_of(state: str) -> str:
    """Returns the colour of a state or an outcome, as rich names it; "default" for other words."""
    return _COLOR_BY_STATE.get(state, "default")


def painted(text: str, state: str) -> str:
    """Returns the text between the escape sequences of the state's colour. The text must be printable already."""
    code = _CODE_BY_COLOR.get(color_of(state))
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"
