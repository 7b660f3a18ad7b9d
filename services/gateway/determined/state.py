"""PURE: states in Determined's words."""

from __future__ import annotations

from gangline.domain.state import CheckpointState, ExitKind, Outcome, State

_STATES = {
    State.QUEUED: "STATE_QUEUED",
    State.STARTING: "STATE_STARTING",
    State.RUNNING: "STATE_RUNNING",
    State.PAUSED: "STATE_PAUSED",
    State.STOPPING: "STATE_STOPPING_CANCELED",
}
_OUTCOMES = {
    Outcome.COMPLETED: "STATE_COMPLETED",
    Outcome.CANCELED: "STATE_CANCELED",
    Outcome.FAILED: "STATE_ERROR",
}
_STATE_BY_NAME = {name: state for state, name in _STATES.items()}
_OUTCOME_BY_NAME = {name: outcome for outcome, name in _OUTCOMES.items()}
_CHECKPOINT_STATES = {CheckpointState.COMPLETED: "STATE_COMPLETED", CheckpointState.DELETING: "STATE_DELETED"}


def state_name(state: State, outcome: Outcome | None, stop_kind: ExitKind | None = None) -> str:
    if state is State.TERMINAL:
        return _OUTCOMES[outcome or Outcome.COMPLETED]
    if state is State.STOPPING and stop_kind is ExitKind.KILLED:
        return "STATE_STOPPING_KILLED"
    return _STATES[state]


def checkpoint_state_name(state: CheckpointState) -> str:
    return _CHECKPOINT_STATES[state]


def states_named(names: list[str]) -> tuple[tuple[State, ...], tuple[Outcome, ...]]:
    """Returns the states and outcomes that Determined's names select; STATE_ACTIVE stands for all of them that wait or
    run. A name that no experiment here ever has selects none."""
    states = [_STATE_BY_NAME[name] for name in names if name in _STATE_BY_NAME]
    if "STATE_ACTIVE" in names:
        states += [State.QUEUED, State.STARTING, State.RUNNING]
    return tuple(dict.fromkeys(states)), tuple(_OUTCOME_BY_NAME[name] for name in names if name in _OUTCOME_BY_NAME)
