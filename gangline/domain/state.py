"""PURE: the closed sets of the domain. The value of each member is its proto name without the prefix."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The stage that an object has reached. PAUSED is for experiments, and in views for their trials that wait."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    TERMINAL = "TERMINAL"
    PAUSED = "PAUSED"


class Outcome(StrEnum):
    """How an object ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class SlotKind(StrEnum):
    CPU = "CPU"
    GPU = "GPU"


class AgentState(StrEnum):
    ALIVE = "ALIVE"
    LOST = "LOST"


class Availability(StrEnum):
    """Whether work may start on an agent or a slot; types.proto explains each member."""

    ENABLED = "ENABLED"
    DRAINING = "DRAINING"
    DISABLED = "DISABLED"


class ExitKind(StrEnum):
    """Why one member of an allocation ended; types.proto explains each member."""

    COMPLETED = "COMPLETED"
    PREEMPTED = "PREEMPTED"
    KILLED = "KILLED"
    USER_ERROR = "USER_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    IMPORT_ERROR = "IMPORT_ERROR"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"
    SIGNAL = "SIGNAL"
    PEER_FAILED = "PEER_FAILED"
    RENDEZVOUS = "RENDEZVOUS"
    NETWORK = "NETWORK"
    START_FAILED = "START_FAILED"
    RUNNER_LOST = "RUNNER_LOST"
    AGENT_LOST = "AGENT_LOST"
    HANG = "HANG"
    UNAVAILABLE = "UNAVAILABLE"
    NONFINITE_METRIC = "NONFINITE_METRIC"
    CHECKPOINT_CORRUPT = "CHECKPOINT_CORRUPT"
    AGENT_DISK = "AGENT_DISK"
    INVALID_HP = "INVALID_HP"
    NO_GATEWAY = "NO_GATEWAY"


class LogAction(StrEnum):
    """The action of a log policy whose pattern matches; types.proto explains each member."""

    CANCEL_RETRIES = "CANCEL_RETRIES"
    EXCLUDE_NODE = "EXCLUDE_NODE"


class LogLevel(StrEnum):
    """How severe a line of a log is, as Python's logging grades it. The members are in ascending order."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class TaskKind(StrEnum):
    """The kind of an experiment that is no training: one command of a user, on slots."""

    COMMAND = "COMMAND"
    SHELL = "SHELL"
    NOTEBOOK = "NOTEBOOK"


class ExperimentAction(StrEnum):
    """A user's request for an experiment that has not ended."""

    PAUSE = "PAUSE"
    ACTIVATE = "ACTIVATE"
    CANCEL = "CANCEL"


class ProjectAction(StrEnum):
    """A user's request for a workspace or a project."""

    CREATE = "CREATE"
    EDIT = "EDIT"
    ARCHIVE = "ARCHIVE"
    UNARCHIVE = "UNARCHIVE"
    DELETE = "DELETE"


class SearchEventKind(StrEnum):
    """An event of a search; each searcher listens to some of them."""

    EXPERIMENT_CREATED = "EXPERIMENT_CREATED"
    TRIAL_CREATED = "TRIAL_CREATED"
    VALIDATED = "VALIDATED"
    PROGRESSED = "PROGRESSED"
    TRIAL_CLOSED = "TRIAL_CLOSED"
    OPERATED = "OPERATED"


class SearchOperationKind(StrEnum):
    """What the process of a custom search asks for."""

    CREATE = "CREATE"
    CLOSE = "CLOSE"
    SHUT_DOWN = "SHUT_DOWN"


class CheckpointState(StrEnum):
    """Whether a checkpoint's files are kept or deleted; types.proto explains each member."""

    COMPLETED = "COMPLETED"
    DELETING = "DELETING"


class UsageGroup(StrEnum):
    """What a report of usage adds up."""

    OWNER = "OWNER"
    POOL = "POOL"
    EXPERIMENT = "EXPERIMENT"
    PROJECT = "PROJECT"
    WORKSPACE = "WORKSPACE"


class DeletionStage(StrEnum):
    """How far the deletion of an experiment has come; types.proto explains each member."""

    FILES = "FILES"
    RECORDS = "RECORDS"
    CODE = "CODE"


class ReasonCode(StrEnum):
    """Why a pending request waits. RUNS_SHRUNK: why a trial runs on fewer slots. STORAGE_AWAY: why a trial that holds
    slots waits."""

    NEVER_FITS = "NEVER_FITS"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    BEHIND_RESERVATION = "BEHIND_RESERVATION"
    FRAGMENTED = "FRAGMENTED"
    NO_CAPACITY = "NO_CAPACITY"
    WAITING_FOR_PREEMPTION = "WAITING_FOR_PREEMPTION"
    BACKOFF_AFTER_FAILURE = "BACKOFF_AFTER_FAILURE"
    AGENTS_UNHEALTHY = "AGENTS_UNHEALTHY"
    AGENTS_DISABLED = "AGENTS_DISABLED"
    PAUSED = "PAUSED"
    SEARCH_WAITING = "SEARCH_WAITING"
    NO_MATCHING_POOL = "NO_MATCHING_POOL"
    RUNS_SHRUNK = "RUNS_SHRUNK"
    NO_GATEWAY = "NO_GATEWAY"
    STORAGE_AWAY = "STORAGE_AWAY"

    @property
    def general(self) -> ReasonCode:
        """Returns the code of the first version that comes nearest to this one, for peers that know no later codes."""
        return _GENERAL_CODES.get(self, self)


_GENERAL_CODES = {
    ReasonCode.AGENTS_DISABLED: ReasonCode.AGENTS_UNHEALTHY,
    ReasonCode.NO_GATEWAY: ReasonCode.BACKOFF_AFTER_FAILURE,
    ReasonCode.STORAGE_AWAY: ReasonCode.AGENTS_UNHEALTHY,
}
