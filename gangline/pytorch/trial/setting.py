"""PURE: the trainer's settings, from an experiment's configuration, which a rank gets as a plain dictionary.

Submit has validated it; off the cluster a user passes as much of it as needed. Defaults are those of the
configuration's reference. Values that a script may write in several forms are read from the dictionary, so that a wrong
one is an error where it is used; all others are read from the settled record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangline.config.optimization import Optimizations, parse_optimizations
from gangline.domain.settled.reading import settle_values
from gangline.domain.settled.record import Settled
from gangline.domain.settled.searcher import UNITS
from gangline.domain.storage.manifest import find_unwritable
from gangline.errors import invalid
from gangline.pytorch.trial.unit import Batch, TrainUnit, parse_unit

if TYPE_CHECKING:
    from gangline.cluster_info import ClusterInfo

CHECKPOINT_POLICIES = ("best", "all", "none")


@dataclass(frozen=True, slots=True)
class TrialSetting:
    """Settings of one trial."""

    config: Mapping[str, Any] = field(default_factory=dict)  # the experiment's configuration, perhaps only parts of it
    settled: Settled = field(default_factory=Settled)  # `config` with all defaults
    hparams: Mapping[str, Any] = field(default_factory=dict)  # this trial's hyperparameters
    optimizations: Optimizations = field(default_factory=Optimizations)  # the section of this name, validated
    trial_seed: int = 0
    # strategy or section as written, or the one that `parallelism: auto` has chosen; None leaves it to the slots
    parallelism: Any = None

    @property
    def max_length(self) -> TrainUnit | None:
        """Length of the trial: searcher.max_length, or else searcher.max_time where time_metric is a unit."""
        section = self.config.get("searcher") or {}
        length = parse_unit(section.get("max_length"), "searcher.max_length")
        return length or self._as_unit(self.settled.searcher.max_time)

    @property
    def rungs(self) -> tuple[TrainUnit, ...]:
        """Lengths at which the searcher decides whether a trial trains on; none where time_metric is a validation
        metric, whose values are known only after a validation."""
        units = map(self._as_unit, self.settled.searcher.rungs)
        return tuple(unit for unit in units if unit is not None)

    def _as_unit(self, length: int | None) -> TrainUnit | None:
        name = self.settled.searcher.unit_name
        return parse_unit({name: length}, "searcher.max_time") if length and name in UNITS else None

    @property
    def validation_period(self) -> TrainUnit | None:
        return parse_unit(self.config.get("min_validation_period"), "min_validation_period")

    @property
    def checkpoint_period(self) -> TrainUnit | None:
        return parse_unit(self.config.get("min_checkpoint_period"), "min_checkpoint_period")

    @property
    def reporting_period(self) -> TrainUnit:
        return Batch(_whole_number(self.config.get("scheduling_unit"), "scheduling_unit") or 100)

    @property
    def may_shrink(self) -> bool:
        """Returns whether an attempt of the trial may have fewer slots than slots_per_trial."""
        resources = self.settled.resources
        fewest = resources.min_slots_per_trial
        return fewest is not None and fewest < resources.slots_per_trial


def optimizations_from(config: Mapping[str, Any], aggregation_frequency: int) -> Optimizations:
    """Returns the section `optimizations`. aggregation_frequency: a script's own, used where the configuration leaves
    it at 1."""
    if not isinstance(aggregation_frequency, int) or aggregation_frequency < 1:
        raise invalid(
            "pytorch.aggregation_frequency",
            f"aggregation_frequency is {aggregation_frequency!r}; it must be at least 1",
        )
    optimizations = parse_optimizations(config.get("optimizations"))
    return (
        optimizations
        if optimizations.aggregation_frequency > 1
        else optimizations.model_copy(update={"aggregation_frequency": aggregation_frequency})
    )


def seed_from(config: Mapping[str, Any]) -> int:
    """Returns reproducibility.experiment_seed, else 0: off the cluster two runs of one script must agree."""
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    return _whole_number(seed, "reproducibility.experiment_seed")


def check_unit(value: Any, argument: str) -> TrainUnit | None:
    """Returns an argument of Trainer.fit, a length or a period; None leaves it to the configuration. Raises
    GanglineError `pytorch.unit` for a value without a unit."""
    if value is None or isinstance(value, TrainUnit):
        return value
    number = value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 5
    raise invalid(
        "pytorch.unit",
        f"Trainer.fit: {argument} is {value!r}, which has no unit; pass pytorch.Batch({number}), "
        f"pytorch.Epoch({number}) or pytorch.Record({number})",
    )


def check_policy(policy: str) -> str:
    if policy not in CHECKPOINT_POLICIES:
        raise invalid("config.checkpoint_policy", f"checkpoint_policy: {policy!r} is none of best, all and none")
    return policy


def _whole_number(value: Any, where: str) -> int:
    """Returns the configuration's number at `where`; 0 where there is none."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid("config.number", f"{where}: expected a whole number of 0 or more, found {value!r}")
    return value


def make_setting(
    cluster: ClusterInfo | None, hparams: Mapping[str, Any], config: Mapping[str, Any], aggregation_frequency: int
) -> TrialSetting:
    """Returns the setting from the experiment's own configuration and hyperparameters, or else from the script's.
    Raises GanglineError `config.hparams` for values that a checkpoint cannot keep."""
    config = {**config, **(cluster.trial.config if cluster else {})}
    odd = find_unwritable(hparams)
    if odd is not None:
        # Checkpoints keep the hyperparameters. The first one, perhaps after hours, would be too late for this error.
        raise invalid(
            "config.hparams",
            f"hparams.{odd}, which checkpoints cannot keep; give numbers, strings, lists and dictionaries",
        )
    return TrialSetting(
        config=config,
        settled=settle_values(config),
        hparams={**hparams, **(cluster.trial.hparams if cluster else {})},
        optimizations=optimizations_from(config, aggregation_frequency),
        trial_seed=cluster.trial.trial_seed if cluster else seed_from(config),
        parallelism=config.get("parallelism"),
    )
