"""The SDK: `Client`, and the records that it returns. Importing it loads grpc, but nothing that trains."""

from gangline.client.change import new_request_id
from gangline.client.login import Login, find_login, load_login
from gangline.client.packing import CodeArchive, pack_code
from gangline.client.record import Created, LogEntry
from gangline.client.session import Client
from gangline.client.submission import Submission, prepare_submission
from gangline.domain.experiment import Inheritance, Project, Template, Workspace
from gangline.domain.explanation import Blocker, Explanation, TaskExplanation
from gangline.domain.history import MetricsPoint as Metrics
from gangline.domain.history import ProgressPoint as Progress
from gangline.domain.history import StoredMetrics as MetricsEntry
from gangline.domain.resource import EtcdHealth
from gangline.domain.task import Task
from gangline.domain.trace import TraceOrder
from gangline.domain.view import (
    AgentView,
    ClusterView,
    ExperimentProgress,
    ExperimentView,
    ProjectView,
    TrialView,
    WorkspaceView,
)

__all__ = [
    "AgentView",
    "Blocker",
    "Client",
    "ClusterView",
    "CodeArchive",
    "Created",
    "EtcdHealth",
    "ExperimentProgress",
    "ExperimentView",
    "Explanation",
    "Inheritance",
    "LogEntry",
    "Login",
    "Metrics",
    "MetricsEntry",
    "Progress",
    "Project",
    "ProjectView",
    "Submission",
    "Task",
    "TaskExplanation",
    "Template",
    "TraceOrder",
    "TrialView",
    "Workspace",
    "WorkspaceView",
    "find_login",
    "load_login",
    "new_request_id",
    "pack_code",
    "prepare_submission",
]
