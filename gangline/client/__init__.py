"""The SDK: `Client`, its twin `AsyncClient`, and the objects and records that they return.

Importing it loads grpc, but nothing that trains. The asynchronous client is loaded with its first use.
"""

from typing import TYPE_CHECKING, Any

from gangline.client.change import new_request_id
from gangline.client.handle import Agent, Checkpoint, Experiment, Job, MetricsReader, Trial
from gangline.client.log_stream import LogOptions
from gangline.client.login import Login, find_login, load_login
from gangline.client.packing import CodeArchive, pack_code
from gangline.client.record import Created, LogEntry
from gangline.client.session import Client
from gangline.client.submission import Submission, prepare_submission
from gangline.domain.explanation import Blocker, Explanation, TaskExplanation
from gangline.domain.history import MetricsPoint as Metrics
from gangline.domain.history import ProgressPoint as Progress
from gangline.domain.history import StoredMetrics as MetricsEntry
from gangline.domain.resource import EtcdHealth
from gangline.domain.task import Task
from gangline.domain.trace import TraceOrder
from gangline.domain.view import AgentView, ClusterView, ExperimentProgress, ExperimentView, TrialView

if TYPE_CHECKING:
    from gangline.client.async_handle import (
        AsyncAgent,
        AsyncCheckpoint,
        AsyncExperiment,
        AsyncJob,
        AsyncMetricsReader,
        AsyncTrial,
    )
    from gangline.client.async_session import AsyncClient

__all__ = [
    "Agent",
    "AgentView",
    "AsyncAgent",
    "AsyncCheckpoint",
    "AsyncClient",
    "AsyncExperiment",
    "AsyncJob",
    "AsyncMetricsReader",
    "AsyncTrial",
    "Blocker",
    "Checkpoint",
    "Client",
    "ClusterView",
    "CodeArchive",
    "Created",
    "EtcdHealth",
    "Experiment",
    "ExperimentProgress",
    "ExperimentView",
    "Explanation",
    "Job",
    "LogEntry",
    "LogOptions",
    "Login",
    "Metrics",
    "MetricsEntry",
    "MetricsReader",
    "Progress",
    "Submission",
    "Task",
    "TaskExplanation",
    "TraceOrder",
    "Trial",
    "TrialView",
    "find_login",
    "load_login",
    "new_request_id",
    "pack_code",
    "prepare_submission",
]


def __getattr__(name: str) -> Any:
    """Loads the asynchronous client."""
    if name == "AsyncClient":
        from gangline.client import async_session  # noqa: PLC0415 - most programs use one of the clients

        return async_session.AsyncClient
    if name.startswith("Async") and name in __all__:
        from gangline.client import async_handle  # noqa: PLC0415 - as above

        return getattr(async_handle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
