"""The token that etcd gives for a user and password.

Owns the password file and the token. The token ends after five minutes, with every restart of a member, and with every
change of users; then `session.py` calls `forget` and the next call logs in again. Never logs password or token.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gangline.errors import invalid
from services.common.access.secret_file import read_secret
from services.common.etcd.connection import EtcdConnection
from services.common.etcd.settings import EtcdSettings
from services.common.etcd.stub import Operation, messages

# Without it a member that lost its quorum hangs for 7 s before it fails a call, and its watches stay silent for ever.
_NEEDS_LEADER = ("hasleader", "true")

Metadata = tuple[tuple[str, str], ...]


class Credential:
    def __init__(self, settings: EtcdSettings) -> None:
        if (settings.user is None) != (settings.password_file is None):
            raise invalid(
                "etcd.half_credential", "etcd.user and etcd.password_file belong together; set both or neither"
            )
        self._settings = settings
        self._token: str | None = None
        self._lock = asyncio.Lock()

    @property
    def has_user(self) -> bool:
        return self._settings.user is not None

    def forget(self, metadata: Metadata) -> None:
        """Drops the token of a call that etcd refused, unless it has been renewed since."""
        if ("token", self._token) in metadata:
            self._token = None

    async def metadata(self, connection: EtcdConnection) -> Metadata:
        """Returns the metadata of every call. Logs in first when there is no token; raises what grpc raises."""
        if not self.has_user:
            return (_NEEDS_LEADER,)
        async with self._lock:
            if self._token is None:
                self._token = await self._log_in(connection)
            return (_NEEDS_LEADER, ("token", self._token))

    async def _log_in(self, connection: EtcdConnection) -> str:
        request = messages.AuthenticateRequest(name=self._settings.user, password=self._read_password())
        method: Any = connection.methods[Operation.AUTHENTICATE]
        answer = await method(request, metadata=(_NEEDS_LEADER,), timeout=self._settings.try_seconds)
        return str(answer.token)

    def _read_password(self) -> str:
        path = self._settings.password_file
        assert path is not None
        try:
            return read_secret(path).decode().strip()
        except OSError as error:
            raise invalid(
                "etcd.unreadable_file", f"cannot read {path}: {error.strerror}; see etcd.password_file"
            ) from error
