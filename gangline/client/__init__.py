"""The SDK: `Client`, and the records that it returns. Importing it loads grpc, but nothing that trains."""

from gangline.client.login import Login, find_login, load_login
from gangline.client.packing import CodeArchive, pack_code
from gangline.client.record import (
    AgentView,
    ClusterView,
    Created,
    ExperimentView,
    LogEntry,
    Metrics,
    MetricsEntry,
    Progress,
    Task,
    TrialView,
)
from gangline.client.session import Client, new_request_id

__all__ = [
    "AgentView",
    "Client",
    "ClusterView",
    "CodeArchive",
    "Created",
    "ExperimentView",
    "LogEntry",
    "Login",
    "Metrics",
    "MetricsEntry",
    "Progress",
    "Task",
    "TrialView",
    "find_login",
    "load_login",
    "new_request_id",
    "pack_code",
]
