"""The right that each call of the gateway needs: every gRPC method, every route of HTTP and every route of
Determined's surface. docs/access.md is about it.

A call without an entry is refused when it is made. `check_call` decides by the caller alone what it can; the use cases
and the leader decide by the caller and the record. What a caller does not see does not exist to it, whatever a call
needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gangline.domain.access import Role, lacks_role
from gangline.errors import ErrorKind, GanglineError
from services.common.server import Principal
from services.gateway.mirror.cluster_state import ClusterState
from services.gateway.mirror.sight import sight_of


class Need(StrEnum):
    OPEN = "nothing, not even a token"
    RUNNER = "to be a trial runner, or an agent or the cluster in its place"
    USER = "to be a user"
    VIEW = "the role of a viewer where the record is; lists and sums leave out the rest"
    VIEW_ALL = "the role of a viewer for the cluster"
    EDIT_SOMEWHERE = "the role of an editor for the cluster or in some workspace"
    EDIT = "the role of an editor in the workspace"
    EDIT_ALL = "the role of an editor for the cluster"
    CHANGE = "to be the owner and an editor of the workspace, or an admin of the workspace"
    OPERATE = "the same as for CHANGE; in a cluster whose roles were never changed an editor of the workspace"
    MANAGE = "the role of an admin in the workspace"
    OWN = "to be the owner, of a task also an editor of its workspace, or an administrator of the cluster"
    ADMIN = "to be an administrator of the cluster"


USER_SERVICE = "/gangline.v1.GatewayService/"
_GRPC = {
    Need.OPEN: "LogIn",
    Need.USER: """GetMe GetAccess LogOut CreateKey ListUsers UpdateUser ListTokens CreateToken ListGroups ListRoles
        ListQuotas ListSavedViews GetSavedView CreateSavedView ListAgents GetCluster GetUsage ListTasks
        PreviewSearch""",
    Need.VIEW: """ListExperiments GetExperiment WatchExperiment GetSearchEvents PreviewRetention StreamLogs
        StreamMetrics GetMetricSeries ExplainJob ListCheckpoints DownloadCheckpoint DownloadOutput DownloadTensorboard
        ListWorkspaces ListProjects ListTemplates GetInheritance ListModels GetModel ListModelVersions GetModelVersion
        ListFusion""",
    Need.VIEW_ALL: "GetSnapshot",
    Need.EDIT_SOMEWHERE: "UploadCode ImportCheckpoint ForgetFusion SetTemplate RemoveTemplate",
    Need.EDIT: "CreateExperiment",
    Need.CHANGE: """DownloadCode DeleteExperiment PostSearchOperations ContinueExperiment DeleteCheckpoints
        UpdateProject UpdateModel UpdateModelVersion SetModelAlias""",
    # Of UpdateExperiment, and of PATCH of an experiment, the retention needs CHANGE.
    Need.OPERATE: """KillExperiment UpdateExperiment ArchiveExperiment UnarchiveExperiment KillTrial ProfileTrial
        MoveExperiment""",
    Need.MANAGE: "UpdateWorkspace AssignRole",
    Need.OWN: "GetTaskAccess ConnectTask RevokeToken UpdateSavedView DeleteSavedView",
    Need.ADMIN: "CreateUser UpdateGroup UpdateAgent SetQuota RemoveQuota ListAudit",
}
_INGEST = "Ingest FetchCode OfferTunnels Tunnel"
_API = "/api/v1"
# Method and path below /api/v1, or a whole path that begins with "//".
_HTTP = {
    Need.OPEN: """GET //healthz, GET //readyz, GET //metrics, GET //prom/http-sd, POST /session""",
    Need.USER: """GET //openapi.json, GET /openapi.json, GET /me, GET /me/access, DELETE /session, POST /session/keys,
        GET /users, GET /users/{user_id}, GET /users/{name}/by-username, PATCH /users/{user_id}, GET /tokens,
        POST /tokens, GET /groups, GET /roles, GET /quotas, GET /saved-views, GET /saved-views/{view_id},
        POST /saved-views, GET /agents, GET /agents/{agent_id}, GET /cluster, GET /master, GET /usage,
        GET /usage/history, GET /resources/allocation/aggregated, GET /tasks, GET /job-queues, GET /stream,
        POST /preview-hp-search, GET /tables/{table}/fields""",
    Need.VIEW: """GET /experiments, GET /experiments/{experiment_id}, GET /experiments/{experiment_id}/trials,
        GET /trials/{trial_id}, GET /tables/{table}, GET /experiments/{experiment_id}/events,
        GET /experiments/{experiment_id}/logs, GET /experiments/{experiment_id}/logs/place,
        GET /trials/{trial_id}/logs/place, GET /trials/{trial_id}/logs, GET /experiments/{experiment_id}/metrics,
        GET /trials/{trial_id}/metrics, GET /trials/{trial_id}/metrics/series, POST /job-queues/preview,
        GET /jobs/{job_id}/explanation, GET /checkpoints, GET /experiments/{experiment_id}/checkpoints,
        GET /checkpoints/{checkpoint_id}, GET /checkpoints/{checkpoint_id}/files/{path:path}, GET /fusion,
        GET /trials/{trial_id}/output, GET /trials/{trial_id}/output/{path:path},
        GET /experiments/{experiment_id}/preview-gc, GET /workspaces, GET /workspaces/{workspace_id},
        GET /workspaces/{workspace_id}/projects, GET /projects/{project_id}, GET /templates, GET /templates/{name},
        GET /models, GET /models/{model_id}, GET /models/{model_id}/versions, GET /model-versions,
        GET /models/{model_id}/versions/{number}, GET /models/{model_id}/aliases/{alias}, GET /metrics/series,
        GET /metrics/names, GET /quotas/{kind}/{subject:path}""",
    Need.VIEW_ALL: "GET /snapshot",
    Need.EDIT_SOMEWHERE: """PUT /code/{code_sha256}, DELETE /fusion/{key}, PUT /templates/{name},
        DELETE /templates/{name}, POST /bulk/experiments""",
    Need.EDIT: "POST /experiments, POST /tasks, POST /workspaces/{workspace_id}/projects, POST /models",
    Need.EDIT_ALL: "POST /workspaces",
    Need.OPERATE: """PATCH /experiments/{experiment_id}, POST /experiments/{experiment_id}/kill,
        POST /experiments/{experiment_id}/pause, POST /experiments/{experiment_id}/activate,
        POST /experiments/{experiment_id}/cancel, POST /experiments/{experiment_id}/archive,
        POST /experiments/{experiment_id}/unarchive, POST /experiments/{experiment_id}/move,
        POST /trials/{trial_id}/kill, POST /trials/{trial_id}/profile, POST /job-queues""",
    Need.CHANGE: """GET /experiments/{experiment_id}/code, DELETE /experiments/{experiment_id},
        POST /experiments/{experiment_id}/continue, PUT /experiments/{experiment_id}/retain_logs, DELETE /checkpoints,
        DELETE /checkpoints/{checkpoint_id}, PATCH /projects/{project_id}, DELETE /projects/{project_id},
        POST /projects/{project_id}/archive, POST /projects/{project_id}/unarchive, PATCH /models/{model_id},
        DELETE /models/{model_id}, POST /models/{model_id}/archive, POST /models/{model_id}/unarchive,
        POST /models/{model_id}/versions, PATCH /models/{model_id}/versions/{number},
        DELETE /models/{model_id}/versions/{number}, PUT /models/{model_id}/aliases/{alias},
        DELETE /models/{model_id}/aliases/{alias}""",
    Need.MANAGE: """PATCH /workspaces/{workspace_id}, DELETE /workspaces/{workspace_id},
        POST /workspaces/{workspace_id}/archive, POST /workspaces/{workspace_id}/unarchive, PUT /roles""",
    Need.OWN: """GET /tasks/{experiment_id}/access, PATCH /tokens/{token_id}, PATCH /saved-views/{view_id},
        DELETE /saved-views/{view_id}""",
    Need.ADMIN: """GET /audit, GET /audit.csv, POST /users, POST /groups, PATCH /groups/{name}, DELETE /groups/{name},
        PUT /quotas/{kind}/{subject:path}, DELETE /quotas/{kind}/{subject:path},
        POST /agents/{agent_id}/enable, POST /agents/{agent_id}/disable,
        POST /agents/{agent_id}/slots/{slot_id:path}/enable, POST /agents/{agent_id}/slots/{slot_id:path}/disable""",
}
_DETERMINED = {
    Need.OPEN: "GET //info, POST /auth/login, GET /master/telemetry, GET /master",
    Need.USER: """POST /auth/logout, GET /me, GET /auth/user, GET /users, PATCH /users, GET /users/{id},
        PATCH /users/{id}, GET /users/{id}/by-username, GET /tokens, POST /tokens, GET /agents, GET /agents/{agent},
        GET /tasks, GET /job-queues-v2, GET /resource-pools, POST /preview-hp-search""",
    Need.VIEW: """GET /experiments, GET /experiments/{id}, GET /experiments/{id}/trials,
        GET /trials/metrics/training_metrics, GET /trials/metrics/validation_metrics,
        GET /trials/metrics/trial_metrics, GET /trials/{id}, GET /runs/{id}/metadata, GET /trials/{id}/workloads,
        GET /trials/{id}/logs, GET /trials/{id}/logs/fields, GET /tasks/{task}/logs, GET /experiments/{id}/checkpoints,
        GET /trials/{id}/checkpoints, GET /checkpoints/{uuid}, GET //checkpoints/{uuid}, GET /workspaces,
        GET /workspaces/{id}, GET /workspaces/{id}/projects, GET /projects/{id}, GET /templates, GET /templates/{name},
        GET //experiments/{id}/preview_gc, GET /commands, GET /commands/{id}, GET /notebooks, GET /notebooks/{id},
        GET /shells, GET /shells/{id}, GET /tasks/{task}""",
    Need.EDIT_SOMEWHERE: "POST /templates/{name}, PATCH /templates/{name}, DELETE /templates/{name}",
    Need.EDIT: """POST /experiments, POST /workspaces/{id}/projects, POST /commands, POST /notebooks, POST /shells,
        PUT /experiments/{id}/labels/{label}, DELETE /experiments/{id}/labels/{label}""",
    Need.EDIT_ALL: "POST /workspaces",
    Need.CHANGE: """POST /experiments/continue, DELETE /experiments/{id}, GET /experiments/{id}/model_def,
        DELETE /checkpoints, POST /checkpoints/rm, PATCH /projects/{id}, DELETE /projects/{id},
        POST /projects/{id}/archive, POST /projects/{id}/unarchive, PUT /experiments/{id}/retain_logs,
        PUT /trials/{id}/retain_logs""",
    Need.OPERATE: """PATCH /experiments/{id}, POST /experiments/{id}/pause, POST /experiments/{id}/activate,
        POST /experiments/{id}/cancel, POST /experiments/{id}/kill, POST /experiments/{id}/archive,
        POST /experiments/{id}/unarchive, POST /experiments/{id}/move, POST /trials/{id}/kill, POST /job-queues,
        POST /commands/{id}/kill, POST /commands/{id}/set_priority, POST /notebooks/{id}/kill,
        POST /notebooks/{id}/set_priority, POST /shells/{id}/kill, POST /shells/{id}/set_priority""",
    Need.MANAGE: """PATCH /workspaces/{id}, DELETE /workspaces/{id}, POST /workspaces/{id}/archive,
        POST /workspaces/{id}/unarchive""",
    Need.OWN: "PATCH /tokens/{id}",
    Need.ADMIN: """POST /users, POST /agents/{agent}/enable, POST /agents/{agent}/disable,
        POST /agents/{agent}/slots/{slot}/enable, POST /agents/{agent}/slots/{slot}/disable""",
}


def _read_routes(table: Mapping[Need, str]) -> dict[tuple[str, str], Need]:
    needs: dict[tuple[str, str], Need] = {}
    for need, text in table.items():
        for entry in text.split(","):
            method, path = entry.split()
            place = method, path[1:] if path.startswith("//") else _API + path
            assert place not in needs, f"{entry} has two entries"
            needs[place] = need
    return needs


NEED_BY_CALL = {USER_SERVICE + name: need for need, names in _GRPC.items() for name in names.split()}
NEED_BY_CALL |= {f"/gangline.v1.IngestService/{name}": Need.RUNNER for name in _INGEST.split()}
NEED_BY_ROUTE = _read_routes(_HTTP)
NEED_BY_DETERMINED_ROUTE = _read_routes(_DETERMINED)


def check_call(need: Need | None, principal: Principal, state: ClusterState) -> None:
    """Refuses what no record could allow. need: None for a call without an entry. Raises GanglineError `auth.no_entry`,
    `auth.forbidden`, `auth.no_role`."""
    if need is None:
        raise GanglineError(
            "auth.no_entry",
            "this call has no entry in the gateway's table of rights, so nobody may make it; report this as a bug",
            ErrorKind.FORBIDDEN,
        )
    if principal.kind in ("allocation", "agent") and need is not Need.RUNNER:
        text = "the token of an allocation may only deliver its trial's records"
        raise GanglineError("auth.forbidden", text, ErrorKind.FORBIDDEN)
    if principal.kind != "user":
        return
    # The use cases refuse what is for administrators: they can name what was attempted, in the error and in the record
    # of the audit log. `test_rights.py` makes each of these calls as each caller.
    rights = sight_of(state, principal).rights
    if need in (Need.EDIT_SOMEWHERE, Need.EDIT) and not rights.may_somewhere(Role.EDITOR):
        raise lacks_role(principal.name, "make this call", Role.EDITOR, "")
