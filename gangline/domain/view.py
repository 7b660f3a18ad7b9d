"""PURE: views that the gateway joins from several records: an experiment, a trial, an agent, the cluster.

Each view is declared here alone. The gateway makes it, gangline.protocol.wire maps it to its message in gateway.proto
and back, the HTTP models read its attributes, and the SDK and the commands show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gangline.domain.allocation import Allocation, Reason
from gangline.domain.experiment import Experiment, Project, Trial, Workspace
from gangline.domain.history import MetricsPoint, Newest, ProgressPoint
from gangline.domain.resource import Agent, Cluster, EtcdHealth, ServiceInstance
from gangline.domain.search import Search
from gangline.domain.state import State


@dataclass(frozen=True, slots=True)
class TrialView:
    """Joins a trial with its newest progress and metrics."""

    trial: Trial
    allocation: Allocation | None = None  # the live allocation; None without one
    # why it waits, for slots or for its storage; None if it does not wait, and while no scheduler leads
    reason: Reason | None = None
    progress: ProgressPoint | None = None
    training: MetricsPoint | None = None
    validation: MetricsPoint | None = None
    warning: str = ""  # what its history lacks until a gateway takes it; else empty
    checkpoint_batches: int | None = None  # batches trained at its latest checkpoint; None without one
    batches_at_risk: int = 0  # batches since its latest checkpoint, which a failure at this moment would cost

    @property
    def newest(self) -> Newest:
        """Returns the newest history by itself, as the HTTP API groups it."""
        return Newest(self.progress, self.training, self.validation)


def count_at_risk(
    trial: Trial, allocation: Allocation | None, progress: ProgressPoint | None, checkpoint_batches: int | None
) -> int:
    """Returns how many batches a failure at this moment would cost; 0 for a trial that does not train."""
    if allocation is None or not allocation.timeline.first_step_at:
        return 0
    batches = progress.batches_completed if progress is not None else trial.batches_completed
    return max(0, batches - (checkpoint_batches or 0))


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """Joins an experiment with its trials."""

    experiment: Experiment
    trials: tuple[TrialView, ...] = ()
    search: Search | None = None  # None for experiments of older versions
    reason: Reason | None = None  # why no further trial starts; None if nothing prevents it

    @property
    def num_slots_ending(self) -> int:
        """Returns the slots that it holds until its ranks have ended, although it is PAUSED or STOPPING."""
        held = (trial.allocation for trial in self.trials if trial.allocation is not None)
        return count_slots_ending(self.experiment, held)

    @property
    def is_released(self) -> bool:
        """Whether it is paused or ended, or is being ended, and none of its trials runs any more: its slots are
        free."""
        is_out = self.experiment.state in (State.PAUSED, State.STOPPING, State.TERMINAL)
        return is_out and all(trial.allocation is None for trial in self.trials)


def count_slots_ending(experiment: Experiment, allocations: Iterable[Allocation]) -> int:
    """Returns the slots of the experiment's live allocations, if they are to end."""
    if experiment.state not in (State.PAUSED, State.STOPPING):
        return 0
    return sum(allocation.num_slots for allocation in allocations)


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """States how far an experiment is."""

    experiment_id: int
    num_trials_ended: int = 0
    num_trials_planned: int = 0  # 0 if unknown
    batches_completed: int = 0  # batches of all trials that were made
    batches_total: int = 0  # 0 while a trial does not know its length
    num_slots_ending: int = 0  # slots that it holds until its ranks have ended, although it is PAUSED or STOPPING


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    workspace: Workspace
    num_projects: int = 0
    num_experiments: int = 0


@dataclass(frozen=True, slots=True)
class ProjectView:
    """Joins a project with its experiments' numbers."""

    project: Project
    workspace_name: str
    num_experiments: int = 0
    num_active_experiments: int = 0  # number of experiments that have not ended
    workspace_archived: bool = False

    @property
    def is_archived(self) -> bool:
        """Returns whether the project or its workspace is archived."""
        return self.project.archived or self.workspace_archived


@dataclass(frozen=True, slots=True)
class AgentView:
    """Joins an agent with its allocations."""

    agent: Agent
    allocation_id_by_slot_id: Mapping[str, str] = field(default_factory=dict)  # free slots are absent


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Describes the cluster; its message is GetClusterResponse."""

    cluster: Cluster  # its id is empty until a scheduler has led for the first time
    version: str
    leader: ServiceInstance | None  # None while no scheduler leads
    services: tuple[ServiceInstance, ...]  # schedulers and gateways that are registered
    num_agents: int
    num_slots: int
    num_slots_used: int  # slots that allocations hold
    num_pending: int  # requests that wait, without those of paused experiments
    etcd: EtcdHealth | None = None  # None from gateways of older versions


@dataclass(frozen=True, slots=True)
class TaskAccess:
    """How the owner of a shell or a notebook reaches it."""

    is_ready: bool = False  # whether its socket accepts connections
    user: str = ""  # user as which it runs; empty before it is ready
    path: str = ""  # path below the address of a gateway, with a token for a browser
    private_key: str = ""  # private key of a shell, in OpenSSH's form
