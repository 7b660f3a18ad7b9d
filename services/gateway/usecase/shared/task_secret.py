"""The secrets of tasks: the tokens of browsers, the codes in the ids of tasks, and the keys of shells.

All are derived from the cluster's token, so every gateway knows them and none is stored.
"""

from __future__ import annotations

import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gangline.domain.experiment import Experiment
from gangline.domain.state import TaskKind
from gangline.domain.user import User
from gangline.errors import unauthenticated
from services.common import keys
from services.common.access.security import hash_token
from services.common.access.task_token import check_proxy_token, proxy_token, read_proxy_token, shell_seed, task_code
from services.gateway.mirror.mirror import Watched

# For so long a browser reaches a task with one address or cookie.
PROXY_SECONDS = 24 * 3600


class TaskSecrets:
    def __init__(self, mirror: Watched, cluster_token: str) -> None:
        self._mirror = mirror
        self._cluster_token = cluster_token

    def token(self, user_name: str, experiment_id: int) -> str:
        """Returns the token of a browser; empty for a name that is no user's."""
        user = self._find_user(user_name)
        if user is None:
            return ""
        ends_at = int(time.time()) + PROXY_SECONDS
        return proxy_token(self._cluster_token, user.name, _login_of(user), str(experiment_id), ends_at)

    def identify(self, token: str, experiment_id: int) -> tuple[User, float]:
        """Returns the user of a browser's token, and how long it is valid, in seconds. Raises GanglineError
        `auth.proxy`."""
        name, ends_at = read_proxy_token(token)
        user = self._find_user(name) if name else None
        if user is None:
            raise unauthenticated("auth.proxy", "this address needs a token; ask for it: gangline notebook open ID")
        now = time.time()
        check_proxy_token(self._cluster_token, token, _login_of(user), str(experiment_id), now)
        return user, ends_at - now

    def _find_user(self, name: str) -> User | None:
        """Returns None for a name of no user, or of one who may not log in any more."""
        user = self._mirror.state.users.find(keys.user(name))
        return None if user is None or user.is_deactivated else user

    def code_of(self, experiment_id: int) -> str:
        """Returns the code in the id of a task."""
        return task_code(self._cluster_token, experiment_id)

    def private_key(self, experiment: Experiment) -> str:
        """Returns the key that opens a shell; empty for another task."""
        if experiment.task_kind is not TaskKind.SHELL:
            return ""
        key = self._key(experiment)
        return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()

    def public_key(self, experiment: Experiment) -> str:
        """Returns the key that a shell admits; empty for another task."""
        if experiment.task_kind is not TaskKind.SHELL:
            return ""
        return self._key(experiment).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def _key(self, experiment: Experiment) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(shell_seed(self._cluster_token, experiment.owner, experiment.id))


def _login_of(user: User) -> str:
    """Returns a hash of all with which the user logs in, so that a browser's token ends with the user's sessions."""
    return hash_token(f"{user.token_sha256} {user.login_sha256} {user.password_hash} {user.sessions_since}")
