"""Describes where a rank runs, in the form that scripts written for Determined expect.

Ids are numbers there: a trial's is its experiment's, times 100,000, plus its own number. A machine of the allocation is
a "container", and the latest checkpoint is its id alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gangline.cluster_info
from gangline.domain.id import number_of
from gangline.lacking import Lacking


@dataclass(frozen=True)
class TrialInfo:
    """Determined's TrialInfo, with the private names that scripts read. No port has to differ between trials, because
    the ranks meet in the trial runner's store."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any]
    _steps_completed: int = 0
    _unique_port_offset: int = 0
    _inter_node_network_interface: str | None = None


@dataclass(frozen=True)
class ClusterInfo(Lacking):
    """Determined's ClusterInfo. container_rank counts the machines of the allocation; slot_ids counts those of this
    machine, from 0."""

    lacks: ClassVar[tuple[str, ...]] = (
        "container_slot_counts",
        "gpu_uuids",
        "master_cert_file",
        "master_cert_name",
        "master_url",
        "session_token",
        "user_data",
    )

    cluster_id: str
    agent_id: str
    slot_ids: list[int]
    task_id: str
    allocation_id: str
    task_type: str
    container_rank: int
    container_addrs: list[str]  # addresses of the machines, by container_rank
    latest_checkpoint: str | None
    trial: TrialInfo


def get_cluster_info() -> ClusterInfo | None:
    """Returns None when no trial runner started this process."""
    info = gangline.cluster_info.get_cluster_info()
    if info is None:
        return None
    trial = TrialInfo(
        trial_id=number_of(info.trial.trial_id),
        experiment_id=info.trial.experiment_id,
        trial_seed=info.trial.trial_seed,
        hparams=info.trial.hparams,
        _config=info.trial.config,
        _steps_completed=info.latest_checkpoint.batches_completed if info.latest_checkpoint else 0,
    )
    return ClusterInfo(
        cluster_id=info.cluster_id,
        agent_id=info.agent_id,
        slot_ids=list(range(len(info.slot_ids))),
        task_id=info.trial.trial_id,
        allocation_id=info.allocation_id,
        task_type="TRIAL",
        container_rank=info.node_rank,
        container_addrs=info.addresses,
        latest_checkpoint=info.latest_checkpoint.id if info.latest_checkpoint else None,
        trial=trial,
    )
