"""PURE: the whole configuration of an experiment, with Determined's names, meanings and defaults.

gangline.config.parse_config reads it from text. Services read back a stored configuration with
ExperimentConfig.model_validate_json, which ignores keys of newer versions.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gangline.config.batch import NAME as BATCH_SIZE
from gangline.config.batch import too_small
from gangline.config.bound import MAX_NAME_LENGTH, count_text
from gangline.config.environment import BindMount, Environment, RetentionPolicy
from gangline.config.failure import HangDetection, LogPolicy
from gangline.config.hyperparameter import Grid, check_hyperparameters, find_uncounted, possible_values
from gangline.config.optimization import Optimizations, compression_conflict
from gangline.config.parallelism import Parallelism
from gangline.config.resource import Profiling, Reproducibility, Resources
from gangline.config.searcher import Length, Searcher
from gangline.config.section import Section, fault, wrong_type
from gangline.config.storage import CheckpointStorage
from gangline.config.task import TaskSection
from gangline.domain.entrypoint import TrialClass, parse_entrypoint, runs_in_every_slot
from gangline.domain.settled.searcher import MAX_TRIALS, UNITS


class ExperimentConfig(Section):
    """The configuration of an experiment. name: the entrypoint when empty. data: passed to the trial unchanged.

    scheduling_unit: batches between two reports of training metrics, and between two checks for a preemption.
    max_restarts: failed attempts of a trial after which it runs again. preemption_timeout: seconds for the checkpoint
    of an orderly stop. async_checkpoints: training goes on while a checkpoint is written. task: only of a
    command, a shell or a notebook, which is no training. The fields after it are Determined's, without effect here.
    """

    name: str = ""
    description: str = ""
    labels: list[str] = Field(default_factory=list)
    data: dict[str, Any] = Field(default_factory=dict)
    entrypoint: str | list[str]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    searcher: Searcher
    resources: Resources = Resources()
    optimizations: Optimizations = Optimizations()
    scheduling_unit: int = Field(default=100, ge=1)
    records_per_epoch: int = Field(default=0, ge=0)
    perform_initial_validation: bool = False
    min_validation_period: Length = Length(batches=0)
    min_checkpoint_period: Length = Length(batches=0)
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    async_checkpoints: bool = True
    checkpoint_storage: CheckpointStorage = CheckpointStorage()
    max_restarts: int = Field(default=5, ge=0)
    preemption_timeout: int = Field(default=3600, ge=1)
    log_policies: list[LogPolicy] = Field(default_factory=list)
    hang_detection: HangDetection = HangDetection()
    retention_policy: RetentionPolicy = RetentionPolicy()
    reproducibility: Reproducibility = Reproducibility()
    environment: Environment = Environment()
    profiling: Profiling = Profiling()
    bind_mounts: list[BindMount] = Field(default_factory=list)
    workspace: str = ""
    project: str = ""
    parallelism: Parallelism = Parallelism()
    task: TaskSection | None = None
    debug: bool = False
    tensorboard_storage: dict[str, Any] | None = None
    data_layer: dict[str, Any] | None = None
    internal: dict[str, Any] | None = None
    integrations: dict[str, Any] | None = None
    security: dict[str, Any] | None = None
    slurm: dict[str, Any] | None = None
    pbs: dict[str, Any] | None = None

    @field_validator("entrypoint", mode="before")
    @classmethod
    def _is_entrypoint(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
        if not isinstance(value, str) and not is_list:
            raise wrong_type("a string or a list of strings", value)
        if not value or not "".join(value).strip():
            raise fault("invalid_value", "is empty; name a trial as in model_def:MyTrial, or a command")
        return value

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _are_hyperparameters(cls, value: Any) -> dict[str, Any]:
        return check_hyperparameters(value)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("name") or not isinstance(value.get("entrypoint"), str):
            return value
        # A command may be folded over several lines; a name has one line.
        return {**value, "name": " ".join(value["entrypoint"].split())[:MAX_NAME_LENGTH]}

    @model_validator(mode="after")
    def _knows_its_length(self) -> Self:
        searcher = self.searcher
        is_known = searcher.max_length is not None or searcher.time_metric in UNITS
        is_trial = isinstance(parse_entrypoint(self.entrypoint), TrialClass)
        if is_trial and self.task is not None:
            text = f"{self.entrypoint} is a trial class, and a {self.task.kind.lower()} runs a command"
            raise fault("invalid_value", text, "entrypoint")
        if is_trial and not is_known:
            raise fault("missing_key", "required for a trial class, but missing", "searcher", "max_length")
        return self

    @model_validator(mode="after")
    def _search_is_bounded(self) -> Self:
        if self.searcher.name != "grid":
            return self
        uncounted = find_uncounted(self.hyperparameters)
        if uncounted is not None:
            text = "required by the searcher 'grid', but missing"
            raise fault("missing_key", text, "hyperparameters", *uncounted, "count")
        num_points = Grid(self.hyperparameters).num_points
        if num_points > MAX_TRIALS:
            text = f"has {count_text(num_points)} points, and a search has at most {MAX_TRIALS} trials; lower a count"
            raise fault("invalid_value", text, "hyperparameters")
        return self

    @model_validator(mode="after")
    def _compression_fits(self) -> Self:
        conflict = compression_conflict(self.optimizations.gradient_compression, self.parallelism.strategy)
        if conflict is not None:
            raise fault("invalid_value", conflict, "optimizations", "gradient_compression")
        return self

    @model_validator(mode="after")
    def _ranks_have_slots(self) -> Self:
        if self.resources.slots_per_trial == 0 and runs_in_every_slot(self.entrypoint):
            text = "0 slots are for a script, and this entrypoint runs in every slot; use at least 1"
            raise fault("invalid_value", text, "resources", "slots_per_trial")
        return self

    @model_validator(mode="after")
    def _batch_fills_slots(self) -> Self:
        if self.resources.slots_per_trial == 0:
            return self
        sizes = possible_values(self.hyperparameters.get(BATCH_SIZE)) or []
        slots = self.resources.slots_per_trial
        text = too_small(min(sizes), slots, self.parallelism.ranks_per_replica(slots)) if sizes else None
        if text is not None:
            raise fault("batch_too_small", text, "hyperparameters", BATCH_SIZE)
        return self
