"""PURE: where etcd is and how to reach it.

Owns the `[etcd]` table of every service's settings (flags `--etcd-endpoints` and so on). It opens no file and no
connection; `connection.py` does both.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator


class EtcdSettings(BaseModel):
    """Configures how the client reaches etcd."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # `host:port` each. `https://host:port` asks for TLS, and ca_file or cert_file ask for it on all of them. A unix
    # socket of this machine is `unix:path`, without TLS.
    endpoints: tuple[str, ...] = Field(default=("127.0.0.1:2379",), min_length=1)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    # time that one member has to answer one call before the next member is asked
    try_seconds: float = Field(default=1.5, gt=0)
    deadline_seconds: float = Field(default=10.0, gt=0)  # time that all tries of a call may take together
    allow_unsafe_version: bool = False

    @field_validator("endpoints", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
