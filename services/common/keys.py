"""PURE: every key that Gangline keeps in etcd, and the schema of its value.

| key                              | value (its message) | writer                  | lives                      |
|----------------------------------|---------------------|-------------------------|----------------------------|
| election/scheduler               | ServiceInstance     | the candidate that wins | its lease                  |
| alive/<kind>/<id>                | ServiceInstance     | that scheduler, gateway | its lease                  |
| meta/cluster                     | Cluster             | leader                  | for ever                   |
| meta/storage                     | text: its marker    | the first gateway       | for ever                   |
| meta/next_experiment             | Counter             | leader                  | for ever                   |
| meta/next_project                | ProjectCounter      | leader                  | for ever                   |
| meta/next_user                   | UserCounter         | leader                  | for ever                   |
| workspaces/<workspace id>        | Workspace           | leader                  | until deleted              |
| projects/<project id>            | Project             | leader                  | until deleted              |
| templates/<name>                 | Template            | leader                  | until removed              |
| models/<model id>                | Model               | leader                  | until deleted              |
| model_versions/<version id>      | ModelVersion        | leader                  | until deleted              |
| agents/<agent id>                | Agent               | leader                  | for ever                   |
| experiments/<experiment id>      | Experiment          | leader                  | until deleted              |
| trials/<trial id>                | Trial               | leader                  | with its experiment        |
| searches/<experiment id>         | Search              | leader                  | with its experiment        |
| search_logs/<exp. id>/<page>     | SearchLog           | leader                  | with its experiment        |
| requests/<trial id>              | Request             | leader                  | while the trial waits      |
| allocations/<allocation id>      | Allocation          | leader                  | until every member ended   |
| checkpoints/<checkpoint id>      | Checkpoint          | leader                  | until its files are gone   |
| users/<name>                     | User                | leader                  | for ever                   |
| tokens/<token id>                | AccessToken         | leader                  | 30 days after its end      |
| quotas/<kind>/<key>              | Quota               | leader                  | until removed              |
| slot_use/<kind>/<key>            | SlotUse             | leader                  | with its user, workspace   |
| groups/<name>                    | UserGroup           | leader                  | until deleted              |
| roles/<workspace id>             | WorkspaceRoles      | leader                  | with its workspace         |
| fusion/<key>                     | FusionRecord        | leader                  | 30 days, or until forgotten|

"leader" means: only in a transaction guarded by the leader key's create revision. Which slots are taken is derived
from the allocations, never stored beside them.
"""

from __future__ import annotations

ROOT = "/gangline/v1/"

LEADER = ROOT + "election/scheduler"
ALIVE = ROOT + "alive/"
CLUSTER = ROOT + "meta/cluster"
STORAGE = ROOT + "meta/storage"
NEXT_EXPERIMENT = ROOT + "meta/next_experiment"
NEXT_PROJECT = ROOT + "meta/next_project"
NEXT_USER = ROOT + "meta/next_user"
WORKSPACES = ROOT + "workspaces/"
PROJECTS = ROOT + "projects/"
TEMPLATES = ROOT + "templates/"
MODELS = ROOT + "models/"
MODEL_VERSIONS = ROOT + "model_versions/"
AGENTS = ROOT + "agents/"
EXPERIMENTS = ROOT + "experiments/"
TRIALS = ROOT + "trials/"
SEARCHES = ROOT + "searches/"
SEARCH_LOGS = ROOT + "search_logs/"
REQUESTS = ROOT + "requests/"
ALLOCATIONS = ROOT + "allocations/"
CHECKPOINTS = ROOT + "checkpoints/"
USERS = ROOT + "users/"
TOKENS = ROOT + "tokens/"
QUOTAS = ROOT + "quotas/"
SLOT_USE = ROOT + "slot_use/"
FUSION = ROOT + "fusion/"
GROUPS = ROOT + "groups/"
ROLES = ROOT + "roles/"


def alive(kind: str, instance_id: str) -> str:
    return f"{ALIVE}{kind}/{instance_id}"


def agent(agent_id: str) -> str:
    return AGENTS + agent_id


def experiment(experiment_id: int) -> str:
    """Returns the key with the id padded, so that etcd lists experiments by age."""
    return f"{EXPERIMENTS}{experiment_id:010d}"


def trial(trial_id: str) -> str:
    return TRIALS + trial_id


def search(experiment_id: int) -> str:
    return f"{SEARCHES}{experiment_id:010d}"


def search_log(log_id: str) -> str:
    return SEARCH_LOGS + log_id


def request(trial_id: str) -> str:
    return REQUESTS + trial_id


def allocation(allocation_id: str) -> str:
    return ALLOCATIONS + allocation_id


def checkpoint(checkpoint_id: str) -> str:
    return CHECKPOINTS + checkpoint_id


def user(name: str) -> str:
    return USERS + name


def token(token_id: int) -> str:
    return f"{TOKENS}{token_id:010d}"


def quota(subject_id: str) -> str:
    return QUOTAS + subject_id


def slot_use(subject_id: str) -> str:
    return SLOT_USE + subject_id


def group(name: str) -> str:
    return GROUPS + name


def roles(workspace_id: int) -> str:
    """workspace_id: 0 for the assignments for the cluster."""
    return f"{ROLES}{workspace_id:010d}"


def fusion(key: str) -> str:
    return FUSION + key


def workspace(workspace_id: int) -> str:
    return f"{WORKSPACES}{workspace_id:010d}"


def project(project_id: int) -> str:
    return f"{PROJECTS}{project_id:010d}"


def template(name: str) -> str:
    return TEMPLATES + name


def model(model_id: int) -> str:
    return f"{MODELS}{model_id:010d}"


def model_version(version_id: str) -> str:
    return MODEL_VERSIONS + version_id
