"""PURE: the enumerations of Determined's SDK, and the states of Gangline's records in them."""

from __future__ import annotations

from enum import Enum

from gangline.domain import state as ours
from gangline.domain.experiment import Checkpoint, Experiment, Trial


class ExperimentState(Enum):
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    COMPLETED = "STATE_COMPLETED"
    CANCELED = "STATE_CANCELED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    DELETING = "STATE_DELETING"
    DELETE_FAILED = "STATE_DELETE_FAILED"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"


class TrialState(Enum):
    ACTIVE = "STATE_ACTIVE"
    PAUSED = "STATE_PAUSED"
    STOPPING_CANCELED = "STATE_STOPPING_CANCELED"
    STOPPING_KILLED = "STATE_STOPPING_KILLED"
    STOPPING_COMPLETED = "STATE_STOPPING_COMPLETED"
    STOPPING_ERROR = "STATE_STOPPING_ERROR"
    CANCELED = "STATE_CANCELED"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    QUEUED = "STATE_QUEUED"
    PULLING = "STATE_PULLING"
    STARTING = "STATE_STARTING"
    RUNNING = "STATE_RUNNING"


class CheckpointState(Enum):
    ACTIVE = "STATE_ACTIVE"
    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    DELETED = "STATE_DELETED"
    PARTIALLY_DELETED = "STATE_PARTIALLY_DELETED"


class OrderBy(Enum):
    ASC = "ORDER_BY_ASC"
    ASCENDING = "ORDER_BY_ASC"
    DESC = "ORDER_BY_DESC"
    DESCENDING = "ORDER_BY_DESC"


class ExperimentSortBy(Enum):
    ID = "SORT_BY_ID"
    NAME = "SORT_BY_NAME"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    OWNER = "SORT_BY_USER"


class TrialSortBy(Enum):
    ID = "SORT_BY_ID"
    START_TIME = "SORT_BY_START_TIME"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    BATCHES_PROCESSED = "SORT_BY_BATCHES_PROCESSED"
    RESTARTS = "SORT_BY_RESTARTS"


class CheckpointSortBy(Enum):
    UUID = "SORT_BY_UUID"
    TRIAL_ID = "SORT_BY_TRIAL_ID"
    BATCH_NUMBER = "SORT_BY_BATCH_NUMBER"
    END_TIME = "SORT_BY_END_TIME"
    STATE = "SORT_BY_STATE"
    SEARCHER_METRIC = "SORT_BY_SEARCHER_METRIC"


class LogLevel(Enum):
    TRACE = "LOG_LEVEL_TRACE"
    DEBUG = "LOG_LEVEL_DEBUG"
    INFO = "LOG_LEVEL_INFO"
    WARNING = "LOG_LEVEL_WARNING"
    ERROR = "LOG_LEVEL_ERROR"
    CRITICAL = "LOG_LEVEL_CRITICAL"


class DownloadMode(Enum):
    """Gangline always downloads through a gateway."""

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"


_BY_OUTCOME = {
    ours.Outcome.COMPLETED: "COMPLETED",
    ours.Outcome.FAILED: "ERROR",
    ours.Outcome.CANCELED: "CANCELED",
}
_BY_STOP = {ours.ExitKind.KILLED: "STOPPING_KILLED", ours.ExitKind.PREEMPTED: "STOPPING_CANCELED"}


def experiment_state(record: Experiment) -> ExperimentState:
    if record.is_deleting:
        return ExperimentState.DELETING
    if record.state is ours.State.STOPPING and record.stop_kind is not None:
        return ExperimentState[_BY_STOP.get(record.stop_kind, "STOPPING_COMPLETED")]
    return ExperimentState[_name_of(record.state, record.outcome)]


def trial_state(record: Trial) -> TrialState:
    return TrialState[_name_of(record.state, record.outcome)]


def checkpoint_state(record: Checkpoint) -> CheckpointState:
    is_complete = record.state is ours.CheckpointState.COMPLETED
    return CheckpointState.COMPLETED if is_complete else CheckpointState.DELETED


def _name_of(state: ours.State, outcome: ours.Outcome | None) -> str:
    if outcome is not None:
        return _BY_OUTCOME[outcome]
    return "STOPPING_COMPLETED" if state in (ours.State.STOPPING, ours.State.TERMINAL) else state.value
