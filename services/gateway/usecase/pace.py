"""PURE: the pace of the newest trial that is comparable with those of a configuration, for the cost of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.settled.reading import settle
from gangline.domain.settled.record import Settled

# Experiments whose configurations are read, the newest first.
MOST_READ = 500


def find_pace(
    settled: Settled, unit: str, experiments: Iterable[Experiment], trials_of: Callable[[int], Iterable[Trial]]
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
        other = settle(experiment.config_json)
        if _traits(other) != _traits(settled):
            continue
        for trial in sorted(trials, key=lambda trial: -trial.created_at):
            batches = _batches_per_unit(unit, other, trial)
            if batches:
                return trial.id, trial.seconds_per_batch * batches
    return "", 0.0


def _traits(settled: Settled) -> tuple[object, ...]:
    return (
        settled.entrypoint,
        settled.resources.slots_per_trial,
        settled.parallelism,
        settled.hyperparameters.get("global_batch_size"),
    )


def _batches_per_unit(unit: str, settled: Settled, trial: Trial) -> float:
    """Returns the batches of one unit for such a trial; 0 where its length does not tell."""
    if unit == "batches":
        return 1.0
    length = settled.searcher.max_length
    if length is not None and length.unit == unit and length.units > 0 and trial.batches_total > 0:
        return trial.batches_total / length.units
    return 0.0
