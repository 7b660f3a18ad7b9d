"""PURE: what the trainer reads out of an experiment's configuration, as the rank gets it: a plain dictionary.

Submit has validated it; off the cluster a user passes as much of it as needed. Defaults are those of the
configuration's reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline.errors import invalid
from gangline.pytorch.unit import Batch, TrainUnit, parse_unit

CHECKPOINT_POLICIES = ("best", "all", "none")


@dataclass(frozen=True, slots=True)
class TrialSetting:
    """config: the experiment's configuration, perhaps only parts of it. hparams: this trial's hyperparameters."""

    config: Mapping[str, Any] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)
    aggregation_frequency: int = 1
    trial_seed: int = 0

    @property
    def average_aggregated_gradients(self) -> bool:
        return bool(self._optimization("average_aggregated_gradients", True))

    @property
    def average_training_metrics(self) -> bool:
        return bool(self._optimization("average_training_metrics", True))

    @property
    def parallelism(self) -> Any:
        return self.config.get("parallelism")

    @property
    def max_length(self) -> TrainUnit | None:
        return parse_unit(self._searcher.get("max_length"), "searcher.max_length")

    @property
    def validation_period(self) -> TrainUnit | None:
        return parse_unit(self.config.get("min_validation_period"), "min_validation_period")

    @property
    def checkpoint_period(self) -> TrainUnit | None:
        return parse_unit(self.config.get("min_checkpoint_period"), "min_checkpoint_period")

    @property
    def reporting_period(self) -> TrainUnit:
        return Batch(int(self.config.get("scheduling_unit") or 100))

    @property
    def checkpoint_policy(self) -> str:
        return check_policy(str(self.config.get("checkpoint_policy") or "best"))

    @property
    def has_initial_validation(self) -> bool:
        return bool(self.config.get("perform_initial_validation"))

    @property
    def metric(self) -> str | None:
        """The validation metric that decides which checkpoint is best; None where no searcher names one."""
        return self._searcher.get("metric")

    @property
    def smaller_is_better(self) -> bool:
        return bool(self._searcher.get("smaller_is_better", True))

    @property
    def _searcher(self) -> Mapping[str, Any]:
        return self.config.get("searcher") or {}

    def _optimization(self, key: str, default: Any) -> Any:
        value = (self.config.get("optimizations") or {}).get(key)
        return default if value is None else value


def aggregation_from(config: Mapping[str, Any], default: int) -> int:
    """optimizations.aggregation_frequency, where the configuration says it."""
    value = (config.get("optimizations") or {}).get("aggregation_frequency")
    frequency = default if value is None else value
    if not isinstance(frequency, int) or frequency < 1:
        raise invalid("config.aggregation_frequency", f"optimizations.aggregation_frequency: {frequency!r} is below 1")
    return frequency


def seed_from(config: Mapping[str, Any]) -> int:
    """reproducibility.experiment_seed, else 0: off the cluster two runs of one script shall agree."""
    return int((config.get("reproducibility") or {}).get("experiment_seed") or 0)


def check_policy(policy: str) -> str:
    if policy not in CHECKPOINT_POLICIES:
        raise invalid("config.checkpoint_policy", f"checkpoint_policy: {policy!r} is none of best, all and none")
    return policy
