"""PURE: the one place that decides which calls leave a record of the audit log, and under which name.

Every method and every changing route that the gateway serves is in one of these tables; `tests/unit/gateway/
test_audit_action.py` walks them. A call of the recorded tables leaves one record for each change that it makes, or one
record if it makes none. Reading calls leave a record only when they are forbidden.

A name is KIND.VERB and is the same over gRPC, HTTP and Determined's API. A call that may make one of several changes
has here the name for an attempt that was refused before it was clear which; `change.py` names the changes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

LOGIN, LOGOUT = "session.login", "session.logout"
# A refused reading call, and a call with an unknown token; the record's object is the call.
READ, UNKNOWN_TOKEN = "call.read", "call.unknown_token"
CONNECT = "task.connect"
# Written by the log itself in place of records that it had no room for.
DROPPED = "audit.dropped"

# By method of GatewayService.
RECORDED_CALLS: Mapping[str, str] = {
    "ArchiveExperiment": "experiment.archive",
    "AssignRole": "role.assign",
    "ConnectTask": CONNECT,
    "ContinueExperiment": "experiment.continue",
    "CreateExperiment": "experiment.create",
    "CreateKey": "session.create_key",
    "CreateSavedView": "saved_view.create",
    "CreateToken": "token.create",
    "CreateUser": "user.create",
    "DeleteCheckpoints": "checkpoint.delete",
    "DeleteExperiment": "experiment.delete",
    "DeleteSavedView": "saved_view.delete",
    "ForgetFusion": "fusion.forget",
    "ImportCheckpoint": "checkpoint.import",
    "KillExperiment": "experiment.kill",
    "KillTrial": "trial.kill",
    "LogIn": LOGIN,
    "LogOut": LOGOUT,
    "MoveExperiment": "experiment.move",
    "PostSearchOperations": "search.post_operations",
    "ProfileTrial": "trial.profile",
    "RemoveQuota": "quota.remove",
    "RemoveTemplate": "template.delete",
    "RevokeToken": "token.revoke",
    "SetModelAlias": "model.set_alias",
    "SetQuota": "quota.set",
    "SetTemplate": "template.set",
    "UnarchiveExperiment": "experiment.unarchive",
    "UpdateAgent": "agent.update",
    "UpdateExperiment": "experiment.update",
    "UpdateGroup": "group.update",
    "UpdateModel": "model.update",
    "UpdateModelVersion": "model_version.update",
    "UpdateProject": "project.update",
    "UpdateSavedView": "saved_view.edit",
    "UpdateUser": "user.update",
    "UpdateWorkspace": "workspace.update",
    "UploadCode": "code.upload",
}
READING_CALLS = frozenset({
    "DownloadCheckpoint", "DownloadCode", "DownloadOutput", "DownloadTensorboard", "ExplainJob", "GetAccess",
    "GetCluster",
    "GetExperiment", "GetInheritance", "GetMe", "GetMetricSeries", "GetModel", "GetModelVersion", "GetSavedView",
    "GetSearchEvents", "GetSnapshot", "GetTaskAccess", "GetUsage", "ListAgents", "ListAudit", "ListCheckpoints",
    "ListExperiments", "ListFusion", "ListGroups", "ListRoles",
    "ListModelVersions", "ListModels", "ListProjects", "ListQuotas", "ListSavedViews",
    "ListTasks", "ListTemplates", "ListTokens", "ListUsers", "ListWorkspaces", "PreviewRetention", "PreviewSearch",
    "StreamLogs", "StreamMetrics", "WatchExperiment",
})  # fmt: skip
# Each with the reason.
UNRECORDED_CALLS: Mapping[str, str] = {
    "IngestService/FetchCode": "reads",
    "IngestService/Ingest": "runners' logs and metrics, at high rates",
    "IngestService/OfferTunnels": "changes nothing of the cluster",
    "IngestService/Tunnel": "the other end of a connection that ConnectTask has recorded",
}

# By method and path below /api/v1 of our own HTTP API. GET reads.
RECORDED_ROUTES: Mapping[tuple[str, str], str] = {
    ("DELETE", "/checkpoints"): "checkpoint.delete",
    ("DELETE", "/checkpoints/{checkpoint_id}"): "checkpoint.delete",
    ("DELETE", "/experiments/{experiment_id}"): "experiment.delete",
    ("DELETE", "/fusion/{key}"): "fusion.forget",
    ("DELETE", "/groups/{name}"): "group.delete",
    ("DELETE", "/models/{model_id}"): "model.delete",
    ("DELETE", "/models/{model_id}/aliases/{alias}"): "model.set_alias",
    ("DELETE", "/models/{model_id}/versions/{number}"): "model_version.delete",
    ("DELETE", "/projects/{project_id}"): "project.delete",
    ("DELETE", "/quotas/{kind}/{subject:path}"): "quota.remove",
    ("DELETE", "/saved-views/{view_id}"): "saved_view.delete",
    ("DELETE", "/session"): LOGOUT,
    ("DELETE", "/templates/{name}"): "template.delete",
    ("DELETE", "/workspaces/{workspace_id}"): "workspace.delete",
    ("PATCH", "/experiments/{experiment_id}"): "experiment.update",
    ("PATCH", "/groups/{name}"): "group.update",
    ("PATCH", "/models/{model_id}"): "model.edit",
    ("PATCH", "/models/{model_id}/versions/{number}"): "model_version.edit",
    ("PATCH", "/projects/{project_id}"): "project.edit",
    ("PATCH", "/saved-views/{view_id}"): "saved_view.edit",
    ("PATCH", "/tokens/{token_id}"): "token.revoke",
    ("PATCH", "/users/{user_id}"): "user.update",
    ("PATCH", "/workspaces/{workspace_id}"): "workspace.edit",
    ("POST", "/agents/{agent_id}/disable"): "agent.update",
    ("POST", "/agents/{agent_id}/enable"): "agent.update",
    ("POST", "/agents/{agent_id}/slots/{slot_id:path}/disable"): "agent.update",
    ("POST", "/agents/{agent_id}/slots/{slot_id:path}/enable"): "agent.update",
    ("POST", "/bulk/experiments"): "experiment.update",
    ("POST", "/experiments"): "experiment.create",
    ("POST", "/experiments/{experiment_id}/activate"): "experiment.activate",
    ("POST", "/experiments/{experiment_id}/archive"): "experiment.archive",
    ("POST", "/experiments/{experiment_id}/cancel"): "experiment.cancel",
    ("POST", "/experiments/{experiment_id}/continue"): "experiment.continue",
    ("POST", "/experiments/{experiment_id}/kill"): "experiment.kill",
    ("POST", "/experiments/{experiment_id}/move"): "experiment.move",
    ("POST", "/experiments/{experiment_id}/pause"): "experiment.pause",
    ("POST", "/experiments/{experiment_id}/unarchive"): "experiment.unarchive",
    ("POST", "/groups"): "group.create",
    ("POST", "/job-queues"): "experiment.update",
    ("POST", "/models"): "model.create",
    ("POST", "/models/{model_id}/archive"): "model.archive",
    ("POST", "/models/{model_id}/unarchive"): "model.unarchive",
    ("POST", "/models/{model_id}/versions"): "model_version.create",
    ("POST", "/projects/{project_id}/archive"): "project.archive",
    ("POST", "/projects/{project_id}/unarchive"): "project.unarchive",
    ("POST", "/saved-views"): "saved_view.create",
    ("POST", "/session"): LOGIN,
    ("POST", "/session/keys"): "session.create_key",
    ("POST", "/tasks"): "experiment.create",
    ("POST", "/tokens"): "token.create",
    ("POST", "/trials/{trial_id}/kill"): "trial.kill",
    ("POST", "/trials/{trial_id}/profile"): "trial.profile",
    ("POST", "/users"): "user.create",
    ("POST", "/workspaces"): "workspace.create",
    ("POST", "/workspaces/{workspace_id}/archive"): "workspace.archive",
    ("POST", "/workspaces/{workspace_id}/projects"): "project.create",
    ("POST", "/workspaces/{workspace_id}/unarchive"): "workspace.unarchive",
    ("PUT", "/code/{code_sha256}"): "code.upload",
    ("PUT", "/experiments/{experiment_id}/retain_logs"): "experiment.set_retention",
    ("PUT", "/models/{model_id}/aliases/{alias}"): "model.set_alias",
    ("PUT", "/quotas/{kind}/{subject:path}"): "quota.set",
    ("PUT", "/roles"): "role.assign",
    ("PUT", "/templates/{name}"): "template.set",
}
UNRECORDED_ROUTES: Mapping[tuple[str, str], str] = {
    ("POST", "/job-queues/preview"): "reads",
    ("POST", "/preview-hp-search"): "reads",
}

# By method and path of Determined's API, where the name differs from that of our own route with the same path.
_TASKS = ("commands", "notebooks", "shells")
RECORDED_OF_DETERMINED: Mapping[tuple[str, str], str] = {
    ("DELETE", "/api/v1/checkpoints"): "checkpoint.delete",
    ("DELETE", "/api/v1/experiments/{id}"): "experiment.delete",
    ("DELETE", "/api/v1/experiments/{id}/labels/{label}"): "experiment.edit",
    ("DELETE", "/api/v1/projects/{id}"): "project.delete",
    ("DELETE", "/api/v1/templates/{name}"): "template.delete",
    ("DELETE", "/api/v1/workspaces/{id}"): "workspace.delete",
    ("PATCH", "/api/v1/experiments/{id}"): "experiment.update",
    ("PATCH", "/api/v1/projects/{id}"): "project.edit",
    ("PATCH", "/api/v1/templates/{name}"): "template.set",
    ("PATCH", "/api/v1/tokens/{id}"): "token.revoke",
    ("PATCH", "/api/v1/users"): "user.update",
    ("PATCH", "/api/v1/users/{id}"): "user.update",
    ("PATCH", "/api/v1/workspaces/{id}"): "workspace.edit",
    ("POST", "/api/v1/agents/{agent}/disable"): "agent.update",
    ("POST", "/api/v1/agents/{agent}/enable"): "agent.update",
    ("POST", "/api/v1/agents/{agent}/slots/{slot}/disable"): "agent.update",
    ("POST", "/api/v1/agents/{agent}/slots/{slot}/enable"): "agent.update",
    ("POST", "/api/v1/auth/login"): LOGIN,
    ("POST", "/api/v1/auth/logout"): LOGOUT,
    ("POST", "/api/v1/checkpoints/rm"): "checkpoint.delete",
    ("POST", "/api/v1/experiments"): "experiment.create",
    ("POST", "/api/v1/experiments/continue"): "experiment.continue",
    ("POST", "/api/v1/experiments/{id}/activate"): "experiment.activate",
    ("POST", "/api/v1/experiments/{id}/archive"): "experiment.archive",
    ("POST", "/api/v1/experiments/{id}/cancel"): "experiment.cancel",
    ("POST", "/api/v1/experiments/{id}/kill"): "experiment.kill",
    ("POST", "/api/v1/experiments/{id}/move"): "experiment.move",
    ("POST", "/api/v1/experiments/{id}/pause"): "experiment.pause",
    ("POST", "/api/v1/experiments/{id}/unarchive"): "experiment.unarchive",
    ("POST", "/api/v1/job-queues"): "experiment.update",
    ("POST", "/api/v1/projects/{id}/archive"): "project.archive",
    ("POST", "/api/v1/projects/{id}/unarchive"): "project.unarchive",
    ("POST", "/api/v1/templates/{name}"): "template.set",
    ("POST", "/api/v1/tokens"): "token.create",
    ("POST", "/api/v1/trials/{id}/kill"): "trial.kill",
    ("POST", "/api/v1/users"): "user.create",
    ("POST", "/api/v1/workspaces"): "workspace.create",
    ("POST", "/api/v1/workspaces/{id}/archive"): "workspace.archive",
    ("POST", "/api/v1/workspaces/{id}/projects"): "project.create",
    ("POST", "/api/v1/workspaces/{id}/unarchive"): "workspace.unarchive",
    ("PUT", "/api/v1/experiments/{id}/labels/{label}"): "experiment.edit",
    ("PUT", "/api/v1/experiments/{id}/retain_logs"): "experiment.set_retention",
    ("PUT", "/api/v1/trials/{id}/retain_logs"): "experiment.set_retention",
    **{("POST", f"/api/v1/{tasks}"): "experiment.create" for tasks in _TASKS},
    **{("POST", f"/api/v1/{tasks}/{{id}}/kill"): "experiment.kill" for tasks in _TASKS},
    **{("POST", f"/api/v1/{tasks}/{{id}}/set_priority"): "experiment.set_resources" for tasks in _TASKS},
}
UNRECORDED_OF_DETERMINED: Mapping[tuple[str, str], str] = {("POST", "/api/v1/preview-hp-search"): "reads"}
