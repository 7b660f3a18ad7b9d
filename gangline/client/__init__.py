"""The SDK: one method for each call of the gateway, in `Client` and its twin `AsyncClient`, and the objects and records
that they return. `gangline/protocol/retry_rule.py` decides what is repeated, and at which gateway.
`scripts/generate_async_client.py` writes the modules `async_*` from those of the blocking client.

Importing it loads grpc, but nothing that trains. The asynchronous client is loaded with its first use.

Start: session.py
"""

from typing import TYPE_CHECKING, Any

from gangline.client.call_message import new_request_id
from gangline.client.cluster_handle import Agent, Job
from gangline.client.handle import Checkpoint, Experiment, MetricsReader, Trial
from gangline.client.record import Created, ImportedCheckpoint, LogEntry, LogOptions
from gangline.client.session import Client
from gangline.client.submission import Submission, prepare_submission
from gangline.client.transfer.packing import CodeArchive, pack_code
from gangline.domain.access import Access, GroupView, Role, RoleView
from gangline.domain.experiment import Inheritance, Project, Template, Workspace
from gangline.domain.explanation import Blocker, Explanation, TaskExplanation
from gangline.domain.history import MetricsPoint as Metrics
from gangline.domain.history import ProgressPoint as Progress
from gangline.domain.history import StoredMetrics as MetricsEntry
from gangline.domain.resource import EtcdHealth
from gangline.domain.task import Task
from gangline.domain.trace import TraceOrder
from gangline.domain.user import AccessTokenView, OneTimeKey, Session, UserView
from gangline.domain.view import (
    AgentView,
    ClusterView,
    ExperimentProgress,
    ExperimentView,
    ProjectView,
    TrialView,
    WorkspaceView,
)
from gangline.login import Login, find_login, load_login

if TYPE_CHECKING:
    from gangline.client.async_cluster_handle import AsyncAgent, AsyncJob
    from gangline.client.async_handle import AsyncCheckpoint, AsyncExperiment, AsyncMetricsReader, AsyncTrial
    from gangline.client.async_session import AsyncClient

__all__ = [
    "Access",
    "AccessTokenView",
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
    "GroupView",
    "ImportedCheckpoint",
    "Inheritance",
    "Job",
    "LogEntry",
    "LogOptions",
    "Login",
    "Metrics",
    "MetricsEntry",
    "MetricsReader",
    "OneTimeKey",
    "Progress",
    "Project",
    "ProjectView",
    "Role",
    "RoleView",
    "Session",
    "Submission",
    "Task",
    "TaskExplanation",
    "Template",
    "TraceOrder",
    "Trial",
    "TrialView",
    "UserView",
    "Workspace",
    "WorkspaceView",
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
        from gangline.client import async_cluster_handle, async_handle  # noqa: PLC0415 - as above

        return getattr(async_cluster_handle if name in ("AsyncAgent", "AsyncJob") else async_handle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
