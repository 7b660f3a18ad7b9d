"""PURE: extracts the facts about an experiment that the scheduler uses from its configuration.

Owns the reading of `config_json`; no other module of the scheduler parses it. Parsed facts are cached, because every
transition of an experiment asks for them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gangline.config.elastic import sizes_of
from gangline.config.experiment import ExperimentConfig
from gangline.config.searcher import Searcher
from gangline.domain.state import TaskKind
from services.scheduler.state.retention import Retention

DEFAULT_POOL = "default"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of an experiment that its configuration settles."""

    name: str
    slots: int
    # slot counts on which a trial may continue if it cannot have all its slots, the largest first
    smaller_sizes: tuple[int, ...]
    pool: str | None  # as configured; None if the cluster's default applies
    priority: int | None  # as configured; None if the cluster's default applies
    is_single_agent: bool
    is_preemptible: bool
    max_slots: int | None
    weight: float
    max_restarts: int
    preemption_timeout_seconds: float
    searcher: Searcher  # section of the configuration
    seed: int | None  # None lets the scheduler choose one
    hyperparameters: Mapping[str, Any]
    retention: Retention
    task_kind: TaskKind | None = None  # None for a training

    @property
    def pool_name(self) -> str:
        return self.pool or DEFAULT_POOL


# Configurations whose facts are being read, by their text. Only `facts_of_parsed` adds one, and it removes it again.
_parsed: dict[str, ExperimentConfig] = {}


def facts_of_parsed(config_json: str, config: ExperimentConfig) -> Facts:
    """Returns the same as `facts_of`, without parsing the text again. config: the parsed text."""
    _parsed[config_json] = config
    try:
        return facts_of(config_json)
    finally:
        _parsed.pop(config_json, None)


# More experiments than ever wait or run at once. Each cycle asks for all of them, so a cache that is one entry too
# small would parse every configuration anew.
@lru_cache(maxsize=1 << 16)
def facts_of(config_json: str) -> Facts:
    """Returns the facts of a stored configuration.

    Raises pydantic's ValidationError for a text that no version of Gangline stored.
    """
    config = _parsed.get(config_json) or ExperimentConfig.model_validate_json(config_json)
    return Facts(
        name=config.name,
        slots=config.resources.slots_per_trial,
        smaller_sizes=sizes_of(config),
        pool=config.resources.resource_pool or None,
        priority=config.resources.priority,
        is_single_agent=config.resources.is_single_node,
        is_preemptible=config.resources.preemptible,
        max_slots=config.resources.max_slots,
        weight=config.resources.weight,
        max_restarts=config.max_restarts,
        preemption_timeout_seconds=config.preemption_timeout,
        searcher=config.searcher,
        seed=config.reproducibility.experiment_seed,
        hyperparameters=config.hyperparameters,
        retention=Retention(
            experiment_best=config.checkpoint_storage.save_experiment_best,
            trial_best=config.checkpoint_storage.save_trial_best,
            trial_latest=config.checkpoint_storage.save_trial_latest,
            metric=config.searcher.metric,
            smaller_is_better=config.searcher.smaller_is_better,
        ),
        task_kind=config.task.kind if config.task is not None else None,
    )
