"""PURE: the fields of the two tables, of experiments and of trials.

`homes` gives the names of projects, which change without their experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome, State, TaskKind
from services.gateway.table.field import Family, Field, FieldList, Kind, Value, plain
from services.gateway.table.row import ExperimentRow, TrialRow

_STATES, _OUTCOMES = tuple(State), tuple(Outcome)
_NUMBER, _TEXT, _TIME, _FLAG, _TEXTS = Kind.NUMBER, Kind.TEXT, Kind.TIME, Kind.FLAG, Kind.TEXTS
TRAINING = "TRAINING"


class Home(NamedTuple):
    """The names around an experiment."""

    project: str
    workspace: str
    workspace_id: int


NOWHERE = Home("", "", 0)
Homes = Mapping[int, Home]  # by the id of the project


def experiment_fields(homes: Homes, now: float) -> FieldList[ExperimentRow]:
    """Returns the fields of experiments. now: Unix seconds, until which the durations of live ones count."""

    def home(row: ExperimentRow) -> Home:
        return homes.get(row.experiment.home_id, NOWHERE)

    def of(read: Callable[[Experiment], Value]) -> Callable[[ExperimentRow], Value]:
        return lambda row: read(row.experiment)

    def best(row: ExperimentRow) -> Value:
        return plain(row.best_trial.best_validation) if row.best_trial is not None else None

    fields: tuple[Field[ExperimentRow], ...] = (
        Field("id", _NUMBER, lambda row: row.id),
        Field("name", _TEXT, of(lambda one: one.name)),
        Field("owner", _TEXT, of(lambda one: one.owner)),
        Field("state", _TEXT, of(lambda one: one.state), choices=_STATES),
        Field("outcome", _TEXT, of(lambda one: one.outcome), "null until the state is TERMINAL", _OUTCOMES),
        Field("reason", _TEXT, of(lambda one: one.reason or None), "why it has its outcome"),
        Field("labels", _TEXTS, of(lambda one: one.labels)),
        Field("notes", _TEXT, of(lambda one: one.notes or None)),
        Field("description", _TEXT, lambda row: row.settled.description or None),
        Field("archived", _FLAG, of(lambda one: one.archived)),
        Field("deleting", _FLAG, of(lambda one: one.is_deleting)),
        Field("startTime", _TIME, of(lambda one: one.created_at or None)),
        Field("endTime", _TIME, of(lambda one: one.ended_at or None)),
        Field("duration", _NUMBER, of(lambda one: _duration(one, now)), "seconds to its end, or to now"),
        Field("projectId", _NUMBER, of(lambda one: one.home_id)),
        Field("project", _TEXT, lambda row: home(row).project),
        Field("workspaceId", _NUMBER, lambda row: home(row).workspace_id),
        Field("workspace", _TEXT, lambda row: home(row).workspace),
        Field("template", _TEXT, of(lambda one: one.template or None)),
        Field("forkedFrom", _NUMBER, of(lambda one: one.forked_from or None)),
        Field(
            "kind", _TEXT, of(lambda one: one.task_kind or TRAINING),
            "TRAINING, or the kind of a task", (TRAINING, *TaskKind),
        ),
        Field("searcher", _TEXT, lambda row: row.settled.searcher.name or None),
        Field("metric", _TEXT, lambda row: row.settled.searcher.metric or None, "validation metric of its searcher"),
        Field("smallerIsBetter", _FLAG, lambda row: row.settled.searcher.smaller_is_better),
        Field("entrypoint", _TEXT, lambda row: _line(row.settled.entrypoint) or None),
        Field("pool", _TEXT, lambda row: row.settled.resources.pool_name),
        Field("slots", _NUMBER, lambda row: row.settled.resources.slots_per_trial, "slots of each trial"),
        Field("maxSlots", _NUMBER, lambda row: row.settled.resources.max_slots),
        Field("priority", _NUMBER, lambda row: row.settled.resources.priority, "null for the default of its pool"),
        Field("numTrials", _NUMBER, lambda row: len(row.trials)),
        Field("numTrialsPlanned", _NUMBER, lambda row: row.num_planned),
        Field("numTrialsEnded", _NUMBER, lambda row: row.num_ended),
        Field("progress", _NUMBER, lambda row: row.progress, "0 to 1; null while its length is not known"),
        Field("batches", _NUMBER, lambda row: sum(trial.batches_completed for trial in row.trials)),
        Field("restarts", _NUMBER, lambda row: sum(trial.restarts for trial in row.trials)),
        Field("best", _NUMBER, best, "best value of the searcher's metric"),
        Field("bestTrial", _TEXT, lambda row: row.best_trial.id if row.best_trial else None),
        Field("latest", _NUMBER, _latest, "newest value of the searcher's metric, of the best trial"),
        Field("failure", _TEXT, lambda row: _failure(row.best_trial), "kind of the last failure of the best trial"),
    )  # fmt: skip
    families: tuple[Family[ExperimentRow], ...] = (
        Family("hp.", lambda row: row.hyperparameters, "hyperparameter of the best trial"),
        Family("validation.", lambda row: row.validation, "newest validation metric of the best trial"),
    )
    return FieldList(fields, families)


def trial_fields(homes: Homes, now: float) -> FieldList[TrialRow]:
    """Returns the fields of trials. Arguments as in `experiment_fields`."""

    def home(row: TrialRow) -> Home:
        return homes.get(row.home.experiment.home_id, NOWHERE)

    def of(read: Callable[[Trial], Value]) -> Callable[[TrialRow], Value]:
        return lambda row: read(row.trial)

    fields: tuple[Field[TrialRow], ...] = (
        Field("id", _TEXT, lambda row: row.id),
        Field("number", _NUMBER, of(lambda one: one.number)),
        Field("experimentId", _NUMBER, of(lambda one: one.experiment_id)),
        Field("experimentName", _TEXT, lambda row: row.home.experiment.name),
        Field("owner", _TEXT, lambda row: row.home.experiment.owner),
        Field("labels", _TEXTS, lambda row: row.home.experiment.labels, "labels of its experiment"),
        Field("archived", _FLAG, lambda row: row.home.experiment.archived),
        Field("projectId", _NUMBER, lambda row: row.home.experiment.home_id),
        Field("project", _TEXT, lambda row: home(row).project),
        Field("workspaceId", _NUMBER, lambda row: home(row).workspace_id),
        Field("workspace", _TEXT, lambda row: home(row).workspace),
        Field("pool", _TEXT, lambda row: row.home.settled.resources.pool_name),
        Field("metric", _TEXT, lambda row: row.home.settled.searcher.metric or None),
        Field("state", _TEXT, lambda row: row.state, choices=_STATES),
        Field("outcome", _TEXT, of(lambda one: one.outcome), "null until the state is TERMINAL", _OUTCOMES),
        Field("reason", _TEXT, of(lambda one: one.reason or None), "why it has its outcome"),
        Field("startTime", _TIME, of(lambda one: one.created_at or None)),
        Field("endTime", _TIME, of(lambda one: one.ended_at or None)),
        Field("duration", _NUMBER, of(lambda one: _duration(one, now)), "seconds to its end, or to now"),
        Field("batches", _NUMBER, of(lambda one: one.batches_completed)),
        Field("batchesTotal", _NUMBER, of(lambda one: one.batches_total or None)),
        Field("progress", _NUMBER, of(_share), "0 to 1; null while its length is not known"),
        Field("restarts", _NUMBER, of(lambda one: one.restarts)),
        Field("attempts", _NUMBER, of(lambda one: one.attempts)),
        Field("slots", _NUMBER, of(lambda one: one.attempt_slots or None), "slots of its newest attempt"),
        Field("seed", _NUMBER, of(lambda one: one.seed)),
        Field("best", _NUMBER, of(lambda one: plain(one.best_validation)), "best value of the searcher's metric"),
        Field("bestBatches", _NUMBER, of(lambda one: one.best_validation_batches or None)),
        Field("latest", _NUMBER, lambda row: _number(row.validation.get(row.home.settled.searcher.metric))),
        Field("latestCheckpoint", _TEXT, of(lambda one: one.latest_checkpoint_id or None)),
        Field("failure", _TEXT, of(_failure), "kind of its last failure"),
        Field(
            "failureMessage", _TEXT, of(lambda one: one.last_failure.message if one.last_failure is not None else None)
        ),
        Field("warning", _TEXT, of(lambda one: one.warning or None)),
    )  # fmt: skip
    families: tuple[Family[TrialRow], ...] = (
        Family("hp.", lambda row: row.hyperparameters, "hyperparameter"),
        Family("validation.", lambda row: row.validation, "newest validation metric"),
        Family("metadata.", lambda row: row.metadata, "metadata that its program has set"),
    )
    return FieldList(fields, families)


def _duration(record: Experiment | Trial, now: float) -> float | None:
    return max(0.0, (record.ended_at or now) - record.created_at) if record.created_at else None


def _line(words: str | tuple[str, ...]) -> str:
    return words if isinstance(words, str) else " ".join(words)


def _latest(row: ExperimentRow) -> Value:
    return _number(row.validation.get(row.settled.searcher.metric))


def _number(value: object) -> Value:
    return plain(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _failure(trial: Trial | None) -> Value:
    failure = trial.last_failure if trial is not None else None
    return failure.kind if failure is not None else None


def _share(trial: Trial) -> Value:
    if trial.state is State.TERMINAL:
        return 1.0
    return min(1.0, trial.batches_completed / trial.batches_total) if trial.batches_total else None
