"""The proofs other than a token of ours with which a browser or Determined's client reaches a task."""

from __future__ import annotations

from gangline.domain.experiment import Experiment
from gangline.domain.state import TaskKind
from services.common import keys
from services.common.access.security import is_same_token
from services.common.server import Principal
from services.gateway.mirror.auth import principal_of
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import may_own
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.view import Views


class TaskProofs:
    def __init__(self, mirror: Watched, views: Views, secrets: TaskSecrets) -> None:
        self._mirror = mirror
        self._views = views
        self._secrets = secrets

    def identify(self, token: str, experiment_id: int) -> tuple[Principal, float]:
        """Returns the user of a browser's token, and how long it is valid, in seconds. Raises GanglineError
        `auth.proxy`."""
        user, seconds_left = self._secrets.identify(token, experiment_id)
        return principal_of(user), seconds_left

    def find_by_code(self, experiment_id: int, code: str) -> Experiment | None:
        """Returns the shell whose id has this code. None for another code, for a task of another kind, and for a shell
        whose owner may not log in any more, or is no editor of its workspace any more."""
        if not is_same_token(code, self._secrets.code_of(experiment_id)):
            return None
        experiment = self._views.experiment(experiment_id)
        owner = self._mirror.state.users.find(keys.user(experiment.owner))
        if experiment.task_kind is not TaskKind.SHELL:
            return None
        if owner is not None and (owner.is_deactivated or not may_own(self._mirror, principal_of(owner), experiment)):
            return None
        return experiment
