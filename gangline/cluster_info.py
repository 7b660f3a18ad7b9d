"""Describes to a rank where it runs. The trial runner writes the description into the rank's environment; training code
reads it with `gangline.get_cluster_info()`. It holds no credentials and imports only the standard library."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.domain.settled.record import Settled

# The variable with the description. A longer one goes on in _1, _2 and so on, because Linux starts no program with a
# variable of 128 KiB.
ENVIRONMENT_KEY = "GANGLINE_CLUSTER_INFO"
_MAX_PART = 64 << 10
# The port on the machine of rank 0 for a DistributedContext with chief_ip.
CHIEF_PORT_KEY = "GANGLINE_CHIEF_PORT"


@dataclass(frozen=True)
class TrialInfo:
    """The trial that this process trains."""

    trial_id: str
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]  # this trial's hyperparameters
    config: dict[str, Any]  # the experiment's configuration, with defaults filled in
    strategy_choice_json: str = ""  # what `parallelism: auto` chose in the attempt before; empty if there is none

    @cached_property
    def settled(self) -> Settled:
        """Returns the settings of `config` that Gangline acts on."""
        from gangline.domain.settled.reading import settle_values  # noqa: PLC0415 - most processes need no settings

        return settle_values(self.config)


class CheckpointInfo(str):
    """A checkpoint to resume from. It is the checkpoint's id, as in Determined, and can be passed wherever an id is
    asked for. It also knows its folder as an fsspec URL, and the batches completed when it was saved."""

    __slots__ = ("batches_completed", "id", "url")

    id: str
    url: str
    batches_completed: int

    def __new__(cls, id: str, url: str, batches_completed: int) -> CheckpointInfo:
        info = super().__new__(cls, id)
        info.id, info.url, info.batches_completed = id, url, batches_completed
        return info

    def __getnewargs__(self) -> tuple[str, str, int]:  # type: ignore[override]  # of a str with further fields
        return self.id, self.url, self.batches_completed

    def to_fields(self) -> dict[str, Any]:
        return {"id": self.id, "url": self.url, "batches_completed": self.batches_completed}


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Describes the cluster, the allocation, the machine and the trial of this process."""

    cluster_id: str
    allocation_id: str
    attempt: int
    agent_id: str
    node_rank: int  # number of this machine among those of the allocation, from 0
    num_nodes: int
    slot_ids: list[str]  # slots of this machine, in local-rank order
    storage_url: str  # URL of the storage for checkpoints
    code_directory: str  # folder with the user's files
    trial: TrialInfo
    # checkpoint to resume from, with its id as value; None in a trial that begins
    latest_checkpoint: CheckpointInfo | None = None
    warnings: list[str] = field(default_factory=list)
    # addresses of the machines, by node rank, in the network that links the gang
    addresses: list[str] = field(default_factory=list)
    # Rank of the slot in which this process runs. A launcher of the script's own may number its workers differently.
    rank: int = 0
    world_size: int = 1  # number of slots of the gang, also if runs_once is set
    full_world_size: int = 0  # slots_per_trial in an attempt on fewer slots; 0 in an attempt of full size
    # Whether the entrypoint runs once on each machine, with all slots of the machine. `rank` is then that of the
    # machine's first slot.
    runs_once: bool = False
    storage_wait_seconds: float = 3600.0  # time that the trial waits for a storage that takes nothing
    storage_marker: str = ""  # content of the file by which the storage's folder is known; empty if there is none

    @property
    def rounds(self) -> int:
        """Returns how many batches each rank trains for one batch of each rank of the full gang. It is 1 at full size,
        2 on half of the slots. A script that splits its batches itself sums the gradients of this many batches for one
        step."""
        return max(1, self.full_world_size // self.world_size)

    def to_json(self) -> str:
        latest = self.latest_checkpoint
        # A subclass of str would be written as a plain string.
        return json.dumps(
            _fields_of(self) | {"latest_checkpoint": latest.to_fields() if latest is not None else None},
            default=_fields_of,
        )

    def to_environment(self) -> dict[str, str]:
        """Returns the variables from which `get_cluster_info` reads it."""
        # It is ASCII, so a character is a byte.
        text = self.to_json()
        starts = range(0, len(text), _MAX_PART)
        return {_part_name(number): text[start : start + _MAX_PART] for number, start in enumerate(starts)}

    @staticmethod
    def parse(text: str) -> ClusterInfo:
        values = json.loads(text)
        checkpoint = values.pop("latest_checkpoint")
        return ClusterInfo(
            **{**values, "trial": TrialInfo(**values["trial"])},
            latest_checkpoint=CheckpointInfo(**checkpoint) if checkpoint else None,
        )


def _fields_of(record: Any) -> dict[str, Any]:
    """Returns the fields of a record of this module without copying them. A configuration may be large, and copying it
    costs more than writing it."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def get_cluster_info() -> ClusterInfo | None:
    """Returns None when no trial runner started this process. It may be called any number of times, on every rank."""
    text = _read_text(os.environ)
    return ClusterInfo.parse(text) if text else None


def _read_text(environment: Mapping[str, str]) -> str:
    parts = [environment.get(ENVIRONMENT_KEY, "")]
    # Only a full part goes on in another one, because a user may set a variable of such a name.
    while len(parts[-1]) == _MAX_PART:
        parts.append(environment.get(_part_name(len(parts)), ""))
    return "".join(parts)


def _part_name(number: int) -> str:
    return f"{ENVIRONMENT_KEY}_{number}" if number else ENVIRONMENT_KEY
