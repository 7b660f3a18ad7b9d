"""PURE: experiments, trials and checkpoints, and the workspaces, projects and templates around them. types.proto and
project.proto explain the fields."""

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
    owner: str
    config_json: str
    code_sha256: str
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    request_id: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0
    stop_kind: ExitKind | None = None
    queue_position: float | None = None
    gives_back: bool = False
    archived: bool = False
    deletion: DeletionStage | None = None
    project_id: int = 0
    template: str = ""
    labels: tuple[str, ...] = ()
    notes: str = ""
    forked_from: int = 0
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
    id: str
    experiment_id: int
    number: int
    hyperparameters_json: str = "{}"
    seed: int = 0
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    restarts: int = 0
    attempts: int = 0
    latest_checkpoint_id: str = ""
    batches_completed: int = 0
    validation_json: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0
    timeline: Timeline = field(default_factory=Timeline)
    last_failure: ExitReport | None = None
    infrastructure_failures: int = 0
    closing: Outcome | None = None
    best_validation: float | None = None
    best_validation_batches: int = 0
    batches_total: int = 0
    seconds_per_batch: float = 0.0
    excluded_agents: Mapping[str, str] = field(default_factory=dict)
    failures_in_a_row: int = 0
    furthest_batches: int = 0
    exclusions: tuple[Exclusion, ...] = ()
    attempt_slots: int = 0
    resized_at: float = 0.0
    size_changes: tuple[SizeChange, ...] = ()
    attempt_usages: tuple[AttemptUsage, ...] = ()
    validated_batches: int | None = None
    metadata_json: str = ""
    strategy_choice_json: str = ""
    length_batches: int | None = None
    warning: str = ""
    best_validations: tuple[BestValidation, ...] = ()
    failing_since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    trial_id: str
    experiment_id: int
    batches_completed: int
    url: str
    file_bytes: Mapping[str, int] = field(default_factory=dict)
    metadata_json: str = "{}"
    created_at: float = 0.0
    state: CheckpointState = CheckpointState.COMPLETED
    delete_request_id: str = ""
    # Of an imported one: the name that its user gave it. It has no trial and no experiment.
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

    resource_pool: str = ""
    checkpoint_storage_json: str = ""  # section of a configuration, as a user wrote it
    template: str = ""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace, which holds projects."""

    id: int
    name: str
    owner: str = ""
    created_at: float = 0.0
    archived: bool = False
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
    owner: str = ""
    created_at: float = 0.0
    archived: bool = False
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
    owner: str = ""
    config_json: str = "{}"  # settings as a user wrote them, without defaults
    created_at: float = 0.0
    updated_at: float = 0.0
    request_ids: tuple[str, ...] = ()  # as in a workspace


@dataclass(frozen=True, slots=True)
class ProjectCounter:
    """The ids of the next workspace and the next project, which are never given again."""

    next_workspace_id: int = DEFAULT_WORKSPACE_ID + 1
    next_project_id: int = DEFAULT_PROJECT_ID + 1
    removal_request_ids: tuple[str, ...] = ()  # newest requests that deleted a workspace, a project or a template


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
