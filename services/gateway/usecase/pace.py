"""PURE: the pace of the newest trial that is comparable with those of a configuration, for the cost of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gangline.domain.document import read_document
from gangline.domain.experiment import Experiment, Trial

# Experiments whose configurations are read, the newest first.
MOST_READ = 500


def find_pace(
    config: Mapping[str, Any], unit: str, experiments: Iterable[Experiment], trials_of: Callable[[int], Iterable[Trial]]
) -> tuple[str, float]:
    """Returns the id of the newest comparable trial and its seconds for one unit of length; "" and 0 without one.

    A trial is comparable if its experiment has the same entrypoint, slots_per_trial, parallelism and global batch size,
    and if it has trained at least one batch. unit: batches, records or epochs.
    """
    if unit not in ("batches", "records", "epochs"):
        return "", 0.0
    newest_first = sorted(experiments, key=lambda experiment: -experiment.id)[:MOST_READ]
    for experiment in newest_first:
        trials = [trial for trial in trials_of(experiment.id) if trial.seconds_per_batch > 0]
        if not trials:
            continue
        other = read_document(experiment.config_json)
        if not isinstance(other, dict) or _traits(other) != _traits(config):
            continue
        for trial in sorted(trials, key=lambda trial: -trial.created_at):
            batches = _batches_per_unit(unit, other, trial)
            if batches:
                return trial.id, trial.seconds_per_batch * batches
    return "", 0.0


def _traits(config: Mapping[str, Any]) -> tuple[object, ...]:
    resources, hyperparameters = config.get("resources") or {}, config.get("hyperparameters") or {}
    return (
        config.get("entrypoint"),
        resources.get("slots_per_trial"),
        config.get("parallelism"),
        hyperparameters.get("global_batch_size"),
    )


def _batches_per_unit(unit: str, config: Mapping[str, Any], trial: Trial) -> float:
    """Returns the batches of one unit for such a trial; 0 where its length does not tell."""
    if unit == "batches":
        return 1.0
    length = (config.get("searcher") or {}).get("max_length")
    own_length = length.get(unit) if isinstance(length, dict) else None
    if isinstance(own_length, int) and own_length > 0 and trial.batches_total > 0:
        return trial.batches_total / own_length
    return 0.0
