"""PURE: the sections `environment`, `retention_policy` and `bind_mounts`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from gangline.config.section import Section, clip, fault, wrong_type
from gangline.domain.state import SlotKind

_KINDS = {"cpu", "cuda", "rocm", "gpu"}


class EnvironmentVariables(Section):
    """NAME=VALUE for each kind of slot. One list in the YAML applies to all kinds."""

    cpu: list[str] = Field(default_factory=list)
    cuda: list[str] = Field(default_factory=list)
    rocm: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _accept_list(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"cpu": value, "cuda": value, "rocm": value}
        if not isinstance(value, dict):
            raise wrong_type("a list of NAME=VALUE", value)
        if value and _KINDS.isdisjoint(value):
            # The values may be secrets, so the message has none of them.
            first = clip(str(next(iter(value))))
            raise fault("wrong_type", f'expected a list of NAME=VALUE, found a mapping; write ["{first}=..."]')
        # The name of `cuda` before Determined 0.17.6.
        if "gpu" in value and "cuda" not in value:
            return {"cuda" if kind == "gpu" else kind: entries for kind, entries in value.items()}
        return value

    @field_validator("cpu", "cuda", "rocm", mode="after")
    @classmethod
    def _are_assignments(cls, entries: list[str]) -> list[str]:
        for position, entry in enumerate(entries):
            name, sign, _ = entry.partition("=")
            if not sign or not name:
                raise fault("invalid_value", f"expected NAME=VALUE, found {entry!r}", position)
        return entries

    def of(self, kind: SlotKind) -> dict[str, str]:
        entries = self.cpu if kind is SlotKind.CPU else self.cuda
        return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


class Environment(Section):
    """Holds the surroundings of a trial's processes.

    environment_variables: reach every rank.
    python: an interpreter, or the folder of a virtual environment, on the agents; empty for the agents' own Python.
    With an image it is one in the image; empty for its python3.
    working_directory: the folder in which the processes start, below the code's folder if it is relative.
    image: a name, or names by the kind of slot; gangline.config.container checks it. None for no container.
    registry_auth: username and password for the image's registry.
    secret_names: further names of keys and variables whose values no view shows (gangline.config.layer.secret).
    ports, proxy_ports and pod_spec have no effect.
    """

    environment_variables: EnvironmentVariables = EnvironmentVariables()
    python: str = ""
    working_directory: str = ""
    image: Any = None
    force_pull_image: bool = False
    registry_auth: dict[str, Any] | None = None
    secret_names: list[str] = Field(default_factory=list)
    ports: dict[str, int] = Field(default_factory=dict)
    proxy_ports: list[Any] = Field(default_factory=list)
    pod_spec: dict[str, Any] | None = None
    add_capabilities: list[str] = Field(default_factory=list)
    drop_capabilities: list[str] = Field(default_factory=list)

    @field_validator("python", mode="after")
    @classmethod
    def _is_absolute(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise fault("invalid_value", f"expected an absolute path on the agents, found {path!r}")
        return path

    @field_validator("python", "working_directory", mode="after")
    @classmethod
    def _is_path(cls, path: str) -> str:
        if "\0" in path:
            raise fault("invalid_value", "a path has no NUL character")
        return path


class RetentionPolicy(Section):
    """Holds the days for which logs and metrics are kept after the end of a trial. -1: for ever. None: the gateway's
    default."""

    log_retention_days: int | None = Field(default=None, ge=-1, le=32767)
    metric_retention_days: int | None = Field(default=None, ge=-1, le=32767)


class BindMount(Section):
    host_path: str
    container_path: str
    read_only: bool = False
    propagation: str = "rprivate"
