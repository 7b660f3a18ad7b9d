"""PURE: the section `checkpoint_storage`, in all of Determined's kinds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from gangline.config.section import WRITTEN, Section, fault, unknown_key

_RETENTION = {"type", "save_experiment_best", "save_trial_best", "save_trial_latest"}
KEYS_BY_TYPE: dict[str, set[str]] = {
    "directory": _RETENTION | {"container_path"},
    "shared_fs": _RETENTION
    | {"host_path", "container_path", "checkpoint_path", "tensorboard_path", "storage_path", "propagation"},
    "s3": _RETENTION | {"bucket", "access_key", "secret_key", "endpoint_url", "prefix"},
    "gcs": _RETENTION | {"bucket", "prefix"},
    "azure": _RETENTION | {"container", "connection_string", "account_url", "credential"},
}


class CheckpointStorage(Section):
    """save_*: how many checkpoints outlive the experiment: best of all trials, best and latest of each trial."""

    type: Literal["directory", "shared_fs", "s3", "gcs", "azure"] | None = None
    save_experiment_best: int = Field(default=0, ge=0)
    save_trial_best: int = Field(default=1, ge=0)
    save_trial_latest: int = Field(default=1, ge=0)
    host_path: str | None = None
    container_path: str | None = None
    storage_path: str | None = None
    checkpoint_path: str | None = None
    tensorboard_path: str | None = None
    propagation: str | None = None
    bucket: str | None = None
    prefix: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    endpoint_url: str | None = None
    container: str | None = None
    connection_string: str | None = None
    account_url: str | None = None
    credential: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _belongs_to_type(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is not WRITTEN or not isinstance(value, dict) or value.get("type") not in KEYS_BY_TYPE:
            return value
        storage_type, allowed = value["type"], KEYS_BY_TYPE[value["type"]]
        for key in value:
            if key in cls.model_fields and key not in allowed and not cls.is_default(key, value[key]):
                raise fault("unknown_key", f"has no meaning for storage of type {storage_type!r}; remove it", key)
            if key not in cls.model_fields:
                raise unknown_key(str(key), allowed)
        return value
