"""PURE: experiments, trials and checkpoints, and the workspaces, projects and templates around them. types.proto and
project.proto explain more fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.allocation import Exclusion, ExitReport, SizeChange, Timeline
from gangline.domain.state import CheckpointState, DeletionStage, ExitKind, Outcome, State, TaskKind
from gangline.domain.usage import AttemptUsage

# The file in a checkpoint's folder that lists its other files. A checkpoint that has it is complete.
METADATA_FILE = "metadata.json"
# The key of a checkpoint's metadata with its validation metrics, by which checkpoints are compared.
VALIDATION_METRICS = "validation_metrics"
# The key with the steps after which it was saved; Determined has the same.
STEPS_COMPLETED = "steps_completed"


@dataclass(frozen=True, slots=True)
class Experiment:
    id: int
    name: str
    owner: str  # user who created it
    config_json: str  # validated configuration, with its defaults
    code_sha256: str  # sha256 of the code archive, in hexadecimal
    state: State = State.QUEUED
    outcome: Outcome | None = None  # None until the state is TERMINAL
    reason: str = ""  # why it has this outcome; empty before
    request_id: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0  # 0 until it has ended
    stop_kind: ExitKind | None = None
    queue_position: float | None = None
    gives_back: bool = False
    archived: bool = False  # whether listings leave it out unless they are asked for it
    deletion: DeletionStage | None = None
    project_id: int = 0
    template: str = ""  # template whose settings are merged into the configuration; empty for none
    labels: tuple[str, ...] = ()  # sorted, each once
    notes: str = ""
    forked_from: int = 0  # experiment whose configuration and code it began with; 0 for none
    continued_at: float = 0.0
    continue_request_id: str = ""
    earlier_code_sha256s: tuple[str, ...] = ()
    reviews_checkpoints: bool = False
    task_kind: TaskKind | None = None

    @property
    def is_deleting(self) -> bool:
        return self.deletion is not None

    @property
    def code_sha256s(self) -> tuple[str, ...]:
        """Returns the sha256 of every code that it had, the present one last."""
        return (*self.earlier_code_sha256s, self.code_sha256)

    @property
    def home_id(self) -> int:
        """Returns the id of its project. Experiments of earlier versions name none."""
        return self.project_id or DEFAULT_PROJECT_ID


@dataclass(frozen=True, slots=True)
class ExperimentFilter:
    """Selects experiments. All given conditions have to hold: all of the labels, one of the states or outcomes, one of
    the owners, the text somewhere in the name, whatever the case. An empty one holds for all."""

    labels: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    owners: tuple[str, ...] = ()
    name_contains: str = ""
    task_kinds: tuple[TaskKind, ...] = ()  # only tasks of these kinds; empty for trainings alone

    def matches(self, experiment: Experiment) -> bool:
        return (
            (experiment.task_kind in self.task_kinds if self.task_kinds else experiment.task_kind is None)
            and set(self.labels) <= set(experiment.labels)
            and (
                not (self.states or self.outcomes)
                or experiment.state in self.states
                or experiment.outcome in self.outcomes
            )
            and (not self.owners or experiment.owner in self.owners)
            and self.name_contains.casefold() in experiment.name.casefold()
        )


EVERY_EXPERIMENT = ExperimentFilter()


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A change of an experiment's resources. None leaves a value as it is; max_slots 0 lifts the cap."""

    priority: int | None = None
    weight: float | None = None
    max_slots: int | None = None
    # whether a lower max_slots stops no trial, so that slots beyond it are given back as trials end
    when_free: bool = False


@dataclass(frozen=True, slots=True)
class TextChange:
    """A change of an experiment's texts and labels. None leaves a text as it is. Labels that are there, or are not
    there, already stay so."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    add_labels: tuple[str, ...] = ()
    remove_labels: tuple[str, ...] = ()
    replaces_labels: bool = False  # whether the labels are those of add_labels alone


@dataclass(frozen=True, slots=True)
class RetentionChange:
    """A change of what an experiment keeps. None leaves a value as it is. save_*: how many checkpoints: the best of the
    experiment, the best and the latest of each trial. *_days: after the end of a trial; -1 keeps for ever."""

    save_experiment_best: int | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None
    log_retention_days: int | None = None
    metric_retention_days: int | None = None


@dataclass(frozen=True, slots=True)
class QueueMove:
    """Moves an experiment directly ahead of another experiment of the same pool or directly behind it, at that one's
    priority."""

    anchor_experiment_id: int
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class BestValidation:
    """A validation that was the best one of its trial when it was reported."""

    batches_completed: int
    value: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Trial:
    id: str  # "<experiment id>.<number>", such as "7.1"
    experiment_id: int
    number: int
    hyperparameters_json: str = "{}"  # hyperparameters by name
    seed: int = 0  # seed of its random numbers
    state: State = State.QUEUED
    outcome: Outcome | None = None  # None until the state is TERMINAL
    reason: str = ""  # why it has this outcome; empty before
    restarts: int = 0  # restarts used up, of max_restarts
    attempts: int = 0  # allocations so far
    latest_checkpoint_id: str = ""  # empty without a checkpoint
    batches_completed: int = 0  # batches trained so far
    validation_json: str = ""  # newest validation metrics; empty without any
    created_at: float = 0.0
    ended_at: float = 0.0  # 0 until it has ended
    timeline: Timeline = field(default_factory=Timeline)  # timeline of the newest attempt
    last_failure: ExitReport | None = None  # end of the newest attempt that failed; None without one
    infrastructure_failures: int = 0
    closing: Outcome | None = None
    best_validation: float | None = None  # best value of the searcher's metric; None before the first validation
    best_validation_batches: int = 0  # batches at the best value
    batches_total: int = 0
    seconds_per_batch: float = 0.0
    # reasons by the agent on which it does not start again
    excluded_agents: Mapping[str, str] = field(default_factory=dict)
    failures_in_a_row: int = 0
    furthest_batches: int = 0
    exclusions: tuple[Exclusion, ...] = ()  # agents on which it does not start for a while
    attempt_slots: int = 0
    resized_at: float = 0.0
    size_changes: tuple[SizeChange, ...] = ()  # newest changes of its size, the oldest first
    attempt_usages: tuple[AttemptUsage, ...] = ()  # newest ended attempts, at most 16, the oldest first
    validated_batches: int | None = None
    metadata_json: str = ""  # JSON object that its program has set; empty if it has set none
    # choice of `parallelism: auto` in the newest attempt; empty if the configuration names a strategy
    strategy_choice_json: str = ""
    length_batches: int | None = None  # batches at its first validation at or past searcher.max_length; None before
    warning: str = ""  # warning for its user while it runs; empty for none
    best_validations: tuple[BestValidation, ...] = ()
    failing_since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    trial_id: str
    experiment_id: int
    batches_completed: int  # batches after which it was saved
    url: str  # folder that holds the files, as an fsspec URL
    file_bytes: Mapping[str, int] = field(default_factory=dict)  # size of each file by its path in the folder
    metadata_json: str = "{}"  # metadata that its program gave; {} without any
    created_at: float = 0.0
    state: CheckpointState = CheckpointState.COMPLETED  # DELETING while gateways delete its files
    delete_request_id: str = ""
    # name that its user gave to an imported one, which has no trial and no experiment; else empty
    imported_as: str = ""
    # Of an imported one: its user, who may delete it beside administrators. Others belong to their experiment's owner.
    owner: str = ""
    is_past_length: bool = False


# The project of experiments that name none, and its workspace. Both exist in every cluster, and nothing changes them.
DEFAULT_WORKSPACE_ID = 1
DEFAULT_PROJECT_ID = 1
UNCATEGORIZED = "Uncategorized"


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """Settings of experiments that leave them open; an empty one is not set."""

    resource_pool: str = ""  # pool of experiments that name none
    checkpoint_storage_json: str = ""  # section of a configuration, as a user wrote it; empty if not set
    template: str = ""  # template of experiments that name none


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace, which holds projects."""

    id: int
    name: str
    owner: str = ""  # user who created it; empty for the cluster's own
    created_at: float = 0.0
    archived: bool = False  # whether it takes no new experiments
    defaults: ProjectDefaults = field(default_factory=ProjectDefaults)
    # newest requests that changed the workspace, so that a repeated one changes nothing
    request_ids: tuple[str, ...] = ()

    @property
    def is_immutable(self) -> bool:
        """Returns whether it belongs to the cluster, so that nothing changes it."""
        return self.id == DEFAULT_WORKSPACE_ID


@dataclass(frozen=True, slots=True)
class Project:
    """A project, which holds experiments."""

    id: int
    workspace_id: int
    name: str
    description: str = ""
    owner: str = ""  # user who created it; empty for the cluster's own
    created_at: float = 0.0
    archived: bool = False  # whether it takes no new experiments
    defaults: ProjectDefaults = field(default_factory=ProjectDefaults)
    request_ids: tuple[str, ...] = ()  # as in a workspace

    @property
    def is_immutable(self) -> bool:
        """Returns whether it belongs to the cluster, so that nothing changes it."""
        return self.id == DEFAULT_PROJECT_ID


@dataclass(frozen=True, slots=True)
class Template:
    """A template of settings."""

    name: str
    owner: str = ""  # user who created it
    config_json: str = "{}"  # settings as a user wrote them, without defaults
    created_at: float = 0.0
    updated_at: float = 0.0  # time of the newest change
    request_ids: tuple[str, ...] = ()  # as in a workspace


@dataclass(frozen=True, slots=True)
class ProjectCounter:
    """The ids of the next workspace, project and model, which are never given again."""

    next_workspace_id: int = DEFAULT_WORKSPACE_ID + 1
    next_project_id: int = DEFAULT_PROJECT_ID + 1
    # newest requests that deleted a workspace, a project, a template, a model or a version
    removal_request_ids: tuple[str, ...] = ()
    next_model_id: int = 1
    num_renames: int = 0  # of workspaces, projects and models


@dataclass(frozen=True, slots=True)
class ProjectChange:
    """A change of a workspace or a project. None leaves a value as it is; an empty text unsets a default."""

    name: str | None = None
    description: str | None = None
    resource_pool: str | None = None
    checkpoint_storage_json: str | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """Settings that an experiment inherits."""

    source: str  # origin of the settings, such as "template base"
    config_json: str


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The project of a new experiment, and the settings that it inherits."""

    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    project_id: int = DEFAULT_PROJECT_ID
    template: str = ""  # empty for none
    layers: tuple[ConfigLayer, ...] = ()  # in the order of increasing precedence
