"""The settings of a gateway. Their sources are described in services/common/settings.py."""

from __future__ import annotations

from typing import ClassVar

from pydantic import field_validator

from services.common.settings import ServiceSettings, check_own_storage


class GatewaySettings(ServiceSettings):
    """Holds the settings of a gateway. storage_url: an fsspec URL or a folder, the same as the schedulers'.
    database_url: SQLite for one gateway, PostgreSQL for several that share their history."""

    service: ClassVar[str] = "gateway"

    grpc_listen: str = "0.0.0.0:8081"
    http_listen: str = "0.0.0.0:8080"
    storage_url: str = "/var/lib/gangline/storage"
    database_url: str = "sqlite:////var/lib/gangline/gateway.db"

    @field_validator("storage_url")
    @classmethod
    def _is_one_storage(cls, value: str) -> str:
        check_own_storage(value)
        return value
