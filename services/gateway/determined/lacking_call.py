"""PURE: what Determined's client may ask for that Gangline does not have, each with the way out."""

from __future__ import annotations

from gangline.errors import GanglineError, not_found

_NO_TASKS = "give slots to a program with: gangline cmd run -- COMMAND, or det cmd run COMMAND"
_NO_GROUPS = "users see everything, and administrators may do everything: see docs/cluster.md"
_MODELS = (
    "Determined's calls about models are not served; the registry of models is used with: gangline model --help, or "
    "with gangline.Client, as docs/models.md shows"
)
_NO_TRIAL = (
    "the processes of a trial talk to their trial runner alone; run the script by an experiment: gangline experiment "
    "create FILE FOLDER"
)
_BY_PREFIX = {
    "/api/v1/allocations": _NO_TRIAL,
    "/api/v1/runs": _NO_TRIAL,
    "/api/v1/trial-source-info": _NO_TRIAL,
    "/task-logs": _NO_TRIAL,
    "/api/v1/cleanup_logs": "old logs are deleted every hour, by log_retention_days of the gateway or of the "
    "experiment: gangline experiment set log-retention ID --days N",
    "/api/v1/tasks": f"this cannot be done with a task; {_NO_TASKS}; end a trial with: gangline trial kill ID",
    "/api/v1/models": _MODELS,
    "/api/v1/model": _MODELS,
    "/api/v1/tensorboards": "TensorBoard runs where you are, and reads through the gateway: gangline tensorboard ID",
    "/api/v1/generic-tasks": f"there are no generic tasks; {_NO_TASKS}",
    "/api/v1/users": "this cannot be done with a user here; see: gangline user --help",
    "/api/v1/tokens": "this cannot be done with a token here; see: gangline token --help",
    "/api/v1/groups": f"there are no groups; {_NO_GROUPS}",
    "/api/v1/roles": f"there are no roles; {_NO_GROUPS}",
    "/api/v1/permissions": f"there are no roles; {_NO_GROUPS}",
    "/api/v1/webhooks": "there are no webhooks; follow an experiment with: gangline experiment follow ID",
    "/api/v1/config-policies": "there are no configuration policies; give a workspace or a project its defaults: "
    "gangline workspace edit --help",
    "/api/v1/job-queues": "the queue is read with: gangline task list",
    "/api/v1/resource-pools": "pools belong to no workspace; a workspace has a default pool: gangline workspace edit "
    "--help",
    "/api/v1/master/logs": "the scheduler and the gateway log to their own output; see docs/operation.md",
    "/api/v1/master/config": "each service has settings of its own; see docs/cluster.md",
    "/api/v1/master": "the services have settings of their own; see docs/cluster.md",
    "/resources/allocation": "usage is reported by: gangline usage --since TIME",
    "/oauth2": "there is no single sign-on; log in with a password, or with a token: gangline login --help",
    "/api/v1/auth": "there is no single sign-on; log in with a password, or with a token: gangline login --help",
    "/agents": "single machines are switched off with: gangline agent disable ID",
    "/api/v1/experiments": "this cannot be done with an experiment here; see: gangline experiment --help",
    "/api/v1/trials": "this cannot be done with a trial here; see: gangline trial --help",
    "/api/v1/checkpoints": "this cannot be done with a checkpoint here; see: gangline checkpoint --help",
    "/api/v1/workspaces": "this cannot be done with a workspace here; see: gangline workspace --help",
    "/api/v1/projects": "this cannot be done with a project here; see: gangline project --help",
}
# Calls that need another answer than their neighbours. A part of a path in braces stands for any value.
_BY_PATTERN = {
    "/api/v1/checkpoints/{}/metadata": "the metadata of a checkpoint are those with which it was saved; give them to "
    "core_context.checkpoint.store_path(metadata)",
    "/api/v1/experiments/{}/tensorboard-files": "there are no files of TensorBoard to delete; it reads the metrics, "
    "which end with the experiment: gangline experiment delete ID",
    "/api/v1/master/cluster_message": "there is no message to all users",
    "/api/v1/projects/{}/notes": "a project has a description and no notes: gangline project edit --help",
    "/api/v1/workspaces/{}/available-resource-pools": "every workspace may use every pool: gangline agent list",
}


def lacking(method: str, path: str) -> GanglineError:
    """Returns the refusal of a call that is not there."""
    parts = path.split("/")
    for pattern, way_out in _BY_PATTERN.items():
        wanted = pattern.split("/")
        if len(parts) == len(wanted) and all(each in ("{}", part) for each, part in zip(wanted, parts, strict=True)):
            return not_found("request.lacking", f"Gangline has no such call: {way_out}")
    for prefix in sorted(_BY_PREFIX, key=len, reverse=True):
        if path == prefix or path.startswith(prefix + "/"):
            return not_found("request.lacking", f"Gangline has no such call: {_BY_PREFIX[prefix]}")
    return not_found("request.lacking", f"Gangline has no call {method} {path[:100]} of Determined's; see docs/http.md")
