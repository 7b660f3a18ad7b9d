"""The objects of Determined's SDK, with its names and signatures: each has the object of Gangline's SDK that does the
work. gangline.determined.sdk.experimental makes them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from gangline.client import Client, handle
from gangline.client.checkpoint_choice import choose_order, value_of
from gangline.determined.sdk.experiment_state import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentState,
    LogLevel,
    OrderBy,
    TrialSortBy,
    TrialState,
    checkpoint_state,
    experiment_state,
    trial_state,
)
from gangline.domain.history import StoredMetrics
from gangline.domain.id import number_of
from gangline.domain.settled.reading import settle
from gangline.domain.settled.record import Settled
from gangline.domain.state import LogLevel as OurLogLevel
from gangline.domain.state import State
from gangline.errors import invalid, not_found
from gangline.lacking import PAGE, Lacking

Own = TypeVar("Own")
Run = TypeVar("Run", handle.Experiment, handle.Trial)


@dataclass(frozen=True)
class TrialMetrics:
    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class CheckpointTrainingMetadata:
    experiment_config: dict[str, Any]
    experiment_id: int
    trial_id: int
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]


class _Held(Lacking, Generic[Own]):
    """An object of Determined's SDK. own: the object of Gangline's that does the work."""

    def __init__(self, own: Own, client: Client) -> None:
        self._own = own
        self._client = client


class Checkpoint(_Held[handle.Checkpoint]):
    """Determined's Checkpoint. resources: the bytes of each file."""

    lacks: ClassVar[tuple[str, ...]] = (
        "add_metadata",
        "allocation_id",
        "get_metrics",
        "get_type",
        "load",
        "load_from_path",
        "remove_files",
        "remove_metadata",
    )

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid}, trial_id={number_of(self._own.trial_id)})"

    @property
    def uuid(self) -> str:
        return self._own.id

    @property
    def task_id(self) -> str:
        return self._own.trial_id

    @property
    def state(self) -> CheckpointState:
        return checkpoint_state(self._own.record)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._own.metadata

    @property
    def resources(self) -> dict[str, int]:
        return self._own.files

    @property
    def report_time(self) -> datetime:
        return _time(self._own.record.created_at)

    @property
    def training(self) -> CheckpointTrainingMetadata:
        """Asks the cluster for the experiment and the trial."""
        trial = self._own.trial()
        return CheckpointTrainingMetadata(
            experiment_config=trial.experiment().config,
            experiment_id=self._own.experiment_id,
            trial_id=number_of(self._own.trial_id),
            hparams=trial.hyperparameters,
            validation_metrics={"avgMetrics": self._own.validation_metrics},
        )

    def download(self, path: str | None = None, mode: DownloadMode = DownloadMode.AUTO) -> str:
        """Downloads into `path`, default checkpoints/UUID, and returns it. A folder that has a checkpoint stays."""
        folder = Path(path) if path is not None else Path("checkpoints", self.uuid)
        if not (folder / "metadata.json").exists():
            self._own.download(folder)
        return str(folder)

    def write_metadata_file(self, path: str) -> None:
        Path(path).write_text(json.dumps(self.metadata, indent=2), "utf-8")

    def delete(self) -> None:
        self._own.delete()

    def reload(self) -> None:
        self._own = self._client.checkpoint(self.uuid)


class _HeldRun(_Held[Run]):
    """What experiments and trials have in common."""

    def reload(self) -> None:
        self._own.reload()

    def kill(self) -> None:
        self._own.kill()

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Returns its checkpoints, by the searcher's metric and the best one first where sort_by is None."""
        return _checkpoints(self._own.checkpoints(), self._settled(), self._client, sort_by, order_by, max_results)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        return Checkpoint(self._own.top_checkpoint(sort_by, smaller_is_better), self._client)

    @abstractmethod
    def _settled(self) -> Settled:
        """Returns the configuration of the experiment."""


class Trial(_HeldRun[handle.Trial]):
    """Determined's Trial. id: a number, such as 700001 for trial 7.1."""

    lacks: ClassVar[tuple[str, ...]] = ("searcher_metric_history", "summary_metrics", "get_metrics")

    def __repr__(self) -> str:
        return f"Trial(id={self.id})"

    @property
    def id(self) -> int:
        return number_of(self._own.id)

    trial_id = id

    @property
    def experiment_id(self) -> int:
        return self._own.experiment_id

    @property
    def hparams(self) -> dict[str, Any]:
        return self._own.hyperparameters

    @property
    def state(self) -> TrialState:
        return trial_state(self._own.record)

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        container_ids: Sequence[str] | None = None,
        rank_ids: Sequence[int] | None = None,
        stdtypes: Sequence[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: str | int | None = None,
        timestamp_after: str | int | None = None,
        sources: Sequence[str] | None = None,
        search_text: str | None = None,
    ) -> Iterator[str]:
        """Yields the lines of the trial. timestamp_before, timestamp_after: ISO 8601 or Unix seconds."""
        refuse("Trial.logs", container_ids=container_ids, sources=sources)
        if head is not None and (tail is not None or follow):
            raise invalid("logs.head", "head goes with neither tail nor follow; leave one of them out")
        level = "" if min_level is None else OurLogLevel.DEBUG if min_level is LogLevel.TRACE else min_level.name
        entries = self._own.logs(
            follow=follow,
            tail=tail or 0,
            ranks=rank_ids or (),
            level=level,
            since=_seconds("timestamp_after", timestamp_after),
            until=_seconds("timestamp_before", timestamp_before),
            pattern=_literal(search_text),
        )
        return _texts(entries, stdtypes, head)

    def _settled(self) -> Settled:
        return settle(self._own.experiment().record.config_json)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        return map(_metrics, self._own.metrics(group or ""))

    def stream_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> Iterator[TrialMetrics]:
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterator[TrialMetrics]:
        return self.iter_metrics("validation")

    def get_checkpoints(
        self, sort_by: str | CheckpointSortBy | None = None, order_by: OrderBy | None = None
    ) -> list[Checkpoint]:
        return self.list_checkpoints(sort_by, order_by)

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        if (latest, best, uuid is not None).count(True) != 1:
            raise invalid("checkpoint.selector", "give exactly one of latest, best and uuid")
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        own = [checkpoint for checkpoint in self._own.checkpoints() if uuid in (None, checkpoint.id)]
        if not own:
            raise not_found("checkpoint.none", f"trial {self._own.id} has no such checkpoint")
        return Checkpoint(max(own, key=lambda checkpoint: checkpoint.batches_completed), self._client)


class Experiment(_HeldRun[handle.Experiment]):
    """Determined's Experiment."""

    lacks: ClassVar[tuple[str, ...]] = (
        "add_label",
        "delete_tensorboard_files",
        "download_code",
        "move_to_project",
        "remove_label",
        "set_description",
        "set_labels",
        "set_name",
        "set_notes",
    )

    def __repr__(self) -> str:
        return f"Experiment(id={self.id})"

    @property
    def id(self) -> int:
        return self._own.id

    @property
    def name(self) -> str:
        return self._own.name

    @property
    def archived(self) -> bool:
        return self._own.record.archived

    @property
    def config(self) -> dict[str, Any]:
        return self._own.config

    @property
    def description(self) -> str:
        return settle(self._own.record.config_json).description

    @property
    def labels(self) -> set[str]:
        return set(settle(self._own.record.config_json).labels)

    @property
    def state(self) -> ExperimentState:
        return experiment_state(self._own.record)

    def get_config(self) -> dict[str, Any]:
        return self.config

    def _settled(self) -> Settled:
        return settle(self._own.record.config_json)

    def activate(self) -> None:
        self._own.activate()

    def pause(self) -> None:
        self._own.pause()

    def cancel(self) -> None:
        self._own.cancel()

    def archive(self) -> None:
        self._own.archive()

    def unarchive(self) -> None:
        self._own.unarchive()

    def delete(self) -> None:
        self._own.delete()

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Waits until it has ended. interval: no effect, because changes arrive at once. Raises ValueError while it is
        paused."""
        for view in self._own.watch():
            self._own.record = view.experiment
            if view.experiment.state is State.PAUSED:
                raise ValueError(f"Experiment {self.id} is in paused state. Make sure the experiment is active.")
        return self.state

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> Iterator[Trial]:
        trials = sorted(self._own.trials(), key=_TRIAL_KEYS[sort_by], reverse=order_by is OrderBy.DESC)
        return (Trial(trial, self._client) for trial in trials)

    def get_trials(self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING) -> list[Trial]:
        return list(self.list_trials(sort_by, order_by))

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Waits for the first trial. interval: no effect, because changes arrive at once."""
        for view in self._own.watch():
            if view.trials:
                return Trial(handle.Trial(self._client, view.trials[0].trial), self._client)
        raise not_found("trial.not_found", f"experiment {self.id} has ended without a trial")

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Returns the best checkpoints of different trials, one for each trial."""
        own = self._own.top_n_checkpoints(len(self._own.checkpoints()), sort_by, smaller_is_better)
        best_by_trial: dict[str, handle.Checkpoint] = {}
        for checkpoint in own:
            best_by_trial.setdefault(checkpoint.trial_id, checkpoint)
        return [Checkpoint(checkpoint, self._client) for checkpoint in list(best_by_trial.values())[:limit]]


_TRIAL_KEYS: Mapping[TrialSortBy, Any] = {
    TrialSortBy.ID: lambda own: own.record.number,
    TrialSortBy.START_TIME: lambda own: own.record.created_at,
    TrialSortBy.END_TIME: lambda own: own.record.ended_at,
    TrialSortBy.STATE: lambda own: (trial_state(own.record).value, own.record.number),
    TrialSortBy.BATCHES_PROCESSED: lambda own: own.record.batches_completed,
    TrialSortBy.RESTARTS: lambda own: own.record.restarts,
}
_CHECKPOINT_KEYS: Mapping[CheckpointSortBy, Any] = {
    CheckpointSortBy.UUID: lambda own: own.id,
    CheckpointSortBy.TRIAL_ID: lambda own: number_of(own.trial_id),
    CheckpointSortBy.BATCH_NUMBER: lambda own: own.batches_completed,
    CheckpointSortBy.END_TIME: lambda own: own.record.created_at,
    CheckpointSortBy.STATE: lambda own: own.state.value,
}


def _checkpoints(
    checkpoints: Sequence[handle.Checkpoint],
    settled: Settled,
    client: Client,
    sort_by: str | CheckpointSortBy | None,
    order_by: OrderBy | None,
    max_results: int | None,
) -> list[Checkpoint]:
    """Sorts checkpoints. Those without the metric come last."""
    if isinstance(sort_by, CheckpointSortBy) and sort_by is not CheckpointSortBy.SEARCHER_METRIC:
        ordered = sorted(checkpoints, key=_CHECKPOINT_KEYS[sort_by], reverse=order_by is OrderBy.DESC)
    else:
        metric = sort_by if isinstance(sort_by, str) else None
        is_ascending = None if order_by is None else order_by is OrderBy.ASC
        name, is_ascending = choose_order(settled, metric, is_ascending)
        values = [(value_of(checkpoint.record, name), checkpoint) for checkpoint in checkpoints]
        with_value = sorted(
            ((value, checkpoint) for value, checkpoint in values if value is not None),
            key=lambda pair: pair[0],
            reverse=not is_ascending,
        )
        without = [checkpoint for value, checkpoint in values if value is None]
        ordered = [checkpoint for _, checkpoint in with_value] + without
    return [Checkpoint(checkpoint, client) for checkpoint in ordered[:max_results]]


def _metrics(entry: StoredMetrics) -> TrialMetrics:
    point = entry.point
    return TrialMetrics(
        number_of(entry.trial_id),
        0,
        point.batches_completed,
        _time(entry.at),
        {**point.values, **point.metrics},
        point.group,
    )


def _texts(entries: Iterable[Any], stdtypes: Sequence[str] | None, head: int | None) -> Iterator[str]:
    left = head
    for entry in entries:
        if stdtypes and entry.stream not in stdtypes:
            continue
        if left is not None:
            if left == 0:
                return
            left -= 1
        yield entry.text


def _literal(text: str | None) -> str:
    """Returns the pattern of RE2 that finds exactly this text."""
    return "".join(f"\\{letter}" if letter in r"\.+*?()|[]{}^$" else letter for letter in text or "")


def _seconds(name: str, time: str | int | None) -> float | None:
    if time is None or isinstance(time, int | float):
        return time
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        raise invalid("logs.time", f"{name} is {time[:50]!r}; give ISO 8601 or seconds since 1970") from None


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at).astimezone()


def refuse(call: str, **arguments: object) -> None:
    """Raises GanglineError `alias.argument` for an argument whose feature is missing."""
    for name, value in arguments.items():
        if value is not None:
            raise invalid("alias.argument", f"{name} of {call} is not part of Gangline; leave it out; see {PAGE}")
