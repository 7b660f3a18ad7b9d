"""PURE: the settled configuration of an experiment: the settings that a program acts on, with their defaults.

The names are those of the configuration (docs/configuration.md). gangline.config checks a user's text and completes it;
reading.py makes the record from what gangline.config has stored, or from parts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gangline.domain.container import names_container
from gangline.domain.failure import HangRule, LogRule
from gangline.domain.settled.searcher import SettledSearcher
from gangline.domain.state import TaskKind

DEFAULT_POOL = "default"
NOTHING: Mapping[str, Any] = MappingProxyType({})


class SettledResources(NamedTuple):
    """The slots of a trial, and its place in the queue."""

    slots_per_trial: int = 1  # size of a trial's gang; 0 for a script that computes on no slot
    min_slots_per_trial: int | None = None  # fewest slots on which a trial that has run may go on; None for all
    max_slots: int | None = None  # most slots of the experiment at a time; None for no limit
    weight: float = 1.0  # share of the pool, relative to the weights of other experiments
    priority: int | None = None  # 1 is most urgent; None takes the pool's default
    resource_pool: str = ""  # empty takes the default pool
    is_single_node: bool = False  # whether all slots are on one agent
    preemptible: bool = True  # whether its trials may be stopped for other work
    shm_size: int | str | None = None  # bytes of /dev/shm in a container, or a text such as 4GiB; None for the default

    @property
    def pool_name(self) -> str:
        return self.resource_pool or DEFAULT_POOL


class SettledParallelism(NamedTuple):
    """The strategy with its options, see gangline.config.parallelism. None leaves an option to the strategy."""

    strategy: str = "ddp"
    stages: int | None = None  # slots of one replica of a pipeline; None for all slots
    microbatches: int | None = None  # equal parts of a replica's batch
    schedule: str | None = None
    split: str | tuple[str, ...] | None = None
    carry: tuple[str, ...] | None = None
    replicas: str | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    blocks: tuple[str, ...] | None = None
    activation_checkpointing: str | None = None


class SettledOptimizations(NamedTuple):
    """The part of the section that concerns scripts without a trainer too."""

    nonfinite_loss: str = "stop"  # stop or ignore: the effect of a loss that is no finite number


class SettledStorage(NamedTuple):
    """How many checkpoints outlive the experiment."""

    save_experiment_best: int = 0  # best of all trials
    save_trial_best: int = 1  # best of each trial
    save_trial_latest: int = 1  # latest of each trial


class SettledRetention(NamedTuple):
    """Days for which data is kept after the end of a trial. -1: for ever. None: the gateway's default."""

    log_retention_days: int | None = None
    metric_retention_days: int | None = None


class SettledReproducibility(NamedTuple):
    experiment_seed: int | None = None  # None lets the scheduler choose one


class SettledVariables(NamedTuple):
    """Entries NAME=VALUE by the kind of slot."""

    cpu: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()


class SettledEnvironment(NamedTuple):
    """The surroundings of a trial's processes."""

    environment_variables: SettledVariables = SettledVariables()
    python: str = ""  # interpreter, or folder of a virtual environment; empty for the agents' own, or the image's
    working_directory: str = ""  # folder in which the processes start, below the code's folder if it is relative
    image: Any = None  # name, or names by the kind of slot; None for no container
    force_pull_image: bool = False
    registry_auth: Mapping[str, Any] | None = None  # login at the registry of the image
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()


class SettledMount(NamedTuple):
    """One of the `bind_mounts`."""

    host_path: str = ""
    container_path: str = ""
    read_only: bool = False
    propagation: str = "rprivate"


class SettledTask(NamedTuple):
    """Marks the experiment as a command, a shell or a notebook."""

    kind: TaskKind = TaskKind.COMMAND
    idle_seconds: float | None = None  # time without use after which a notebook ends; None for never


class SettledProfiling(NamedTuple):
    """The batches of which a profile is made. They count from the begin of the trial."""

    enabled: bool = False
    begin_on_batch: int | None = None  # None for no bound
    end_after_batch: int | None = None  # None for no bound
    sync_timings: bool = True  # whether each phase waits for the GPU at its end, so that it includes what it started

    def covers(self, batch: int) -> bool:
        """Returns whether a batch is measured. batch: counts all batches of the trial from 0."""
        first, last = self.begin_on_batch or 0, self.end_after_batch
        return self.enabled and first <= batch and (last is None or batch <= last)


class Settled(NamedTuple):
    """The configuration of an experiment."""

    name: str = ""
    description: str = ""
    labels: tuple[str, ...] = ()
    workspace: str = ""  # name; empty for the default one
    project: str = ""  # name; empty for the default one
    entrypoint: str | tuple[str, ...] = ""  # a line, or the words of a command
    hyperparameters: Mapping[str, Any] = NOTHING  # values and ranges, by name
    data: Mapping[str, Any] = NOTHING  # passed to the trial unchanged
    searcher: SettledSearcher = SettledSearcher()
    resources: SettledResources = SettledResources()
    parallelism: SettledParallelism = SettledParallelism()
    optimizations: SettledOptimizations = SettledOptimizations()
    reproducibility: SettledReproducibility = SettledReproducibility()
    profiling: SettledProfiling = SettledProfiling()
    perform_initial_validation: bool = False
    checkpoint_policy: str = "best"  # best, all or none: the validations after which a checkpoint is saved
    async_checkpoints: bool = True  # whether training goes on while a checkpoint is written
    checkpoint_storage: SettledStorage = SettledStorage()
    retention_policy: SettledRetention = SettledRetention()
    max_restarts: int = 5  # failed attempts of a trial after which it runs again
    preemption_timeout: int = 3600  # seconds for the checkpoint of an orderly stop
    hang_detection: HangRule = HangRule()
    log_policies: tuple[LogRule, ...] = ()  # also policies without a pattern, which have no effect
    environment: SettledEnvironment = SettledEnvironment()
    bind_mounts: tuple[SettledMount, ...] = ()
    task: SettledTask | None = None  # None for a training

    @property
    def task_kind(self) -> TaskKind | None:
        return self.task.kind if self.task is not None else None

    @property
    def has_image(self) -> bool:
        """Returns whether the experiment asks for a container."""
        return names_container(self.environment.image)
