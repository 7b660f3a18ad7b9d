"""A user's way to shells and notebooks: who may reach a task, with which secrets, and the connections to it."""

from __future__ import annotations

from gangline.domain.experiment import Experiment
from gangline.domain.state import TaskKind
from gangline.domain.view import TaskAccess
from gangline.errors import not_found
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import check_own, may_own
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.tunnel_table import OpenTunnel, TunnelTable
from services.gateway.usecase.shared.view import Views

_KINDS = (TaskKind.SHELL, TaskKind.NOTEBOOK)


class Tunnels:
    def __init__(self, caller: Caller, mirror: Watched, views: Views, table: TunnelTable, secrets: TaskSecrets) -> None:
        self._caller = caller
        self._mirror = mirror
        self._views = views
        self._table = table
        self._secrets = secrets

    def find(self, experiment_id: int) -> Experiment:
        """Returns a task that the caller may reach. Raises GanglineError `task.no_tunnel`, `auth.not_owner`,
        `auth.no_role`, `experiment.not_found`."""
        experiment = self._views.experiment(experiment_id)
        if experiment.task_kind not in _KINDS:
            kind = (experiment.task_kind or "experiment").lower()
            raise not_found(
                "task.no_tunnel", f"{experiment_id} is a {kind}, and only shells and notebooks are reached so"
            )
        action = f"reach {experiment.task_kind.lower()} {experiment_id}"
        check_own(self._mirror, self._caller, experiment, action)
        return experiment

    async def open(self, experiment_id: int) -> OpenTunnel:
        """Returns a connection, to be used as a context. Raises GanglineError as `find` and `TunnelTable.open` do."""
        return await self._table.open(self.find(experiment_id))

    def access(self, experiment_id: int) -> TaskAccess:
        """Returns how the caller reaches the task. Raises GanglineError as `find` does."""
        key = self._secrets.private_key(self.find(experiment_id))
        user = self._table.user_of(experiment_id)
        return TaskAccess(user is not None, user or "", self.path_of(experiment_id), key)

    def is_ready(self, experiment_id: int) -> bool:
        return self._table.is_ready(experiment_id)

    async def wait_ready(self, experiment_id: int, seconds: float) -> bool:
        """Returns whether the task can be reached, as soon as it can, or after so many seconds."""
        return await self._table.wait_ready(experiment_id, seconds)

    def path_of(self, experiment_id: int) -> str:
        """Returns the path of a task, with a token for the caller's browser; without one for a caller that is no
        user."""
        token = self.browser_token(experiment_id)
        return f"/proxy/{experiment_id}/" + (f"?token={token}" if token else "")

    def browser_token(self, experiment_id: int) -> str:
        """Returns a token for the caller's browser; empty for a caller that is no user."""
        return self._secrets.token(self._caller.name, experiment_id)

    def code_of(self, experiment: Experiment) -> str:
        """Returns the code in the id of a task; empty for callers that may not reach it."""
        return self._secrets.code_of(experiment.id) if may_own(self._mirror, self._caller.principal, experiment) else ""
