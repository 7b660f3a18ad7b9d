"""The objects of the SDK that users create, each with a reference to its client: experiment, trial and checkpoint.

An object has the record of its last call. `reload` reads it again, and each change replaces it. The methods send
nothing by themselves: they call the client. scripts/generate_async_client.py writes async_handle.py from this file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from gangline.client.checkpoint_choice import best_checkpoints, choose_order, metrics_of
from gangline.client.connection import in_thread
from gangline.client.optional import check_pandas, load_trial, make_frame
from gangline.client.record import LogEntry, LogOptions, OnView, ignore_view
from gangline.client.submission import NO_OVERRIDES
from gangline.domain import experiment as records
from gangline.domain.explanation import Explanation
from gangline.domain.history import MetricSeries, StoredMetrics
from gangline.domain.id import absent
from gangline.domain.settled.reading import load_document, settle
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.domain.trace import TraceOrder
from gangline.domain.view import ExperimentView, TrialView
from gangline.errors import not_found

if TYPE_CHECKING:
    from pandas import DataFrame

    from gangline.client.experiment_calls import ExperimentCalls

T = TypeVar("T")
R = TypeVar("R", bound=records.Trial | records.Checkpoint)


class MetricsReader(Iterator[StoredMetrics]):
    """Reports of metrics, oldest first, which are read as they are needed."""

    def __init__(self, entries: Iterator[StoredMetrics]) -> None:
        self._entries = entries

    def __next__(self) -> StoredMetrics:
        return next(self._entries)

    def to_pandas(self) -> DataFrame:
        """Reads all further reports and returns one row for each: trial_id, group, batches_completed, attempt, at (in
        UTC), and a column for each metric. Raises GanglineError `client.no_pandas` where pandas is not installed."""
        check_pandas()
        entries = []
        for entry in self:
            entries.append(entry)
        return in_thread(make_frame, entries)


class Experiment:
    """An experiment. record: as of the last call. warnings: about settings that are not carried out as written, after
    `create_experiment`."""

    def __init__(self, client: ExperimentCalls, record: records.Experiment, warnings: tuple[str, ...] = ()) -> None:
        self._client = client
        self.record = record
        self.warnings = warnings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, {self.name!r}, {self.outcome or self.state})"

    @property
    def experiment(self) -> records.Experiment:
        """Returns the record, under the name that it has in gangline.client.Created."""
        return self.record

    @property
    def id(self) -> int:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def owner(self) -> str:
        return self.record.owner

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def outcome(self) -> Outcome | None:
        """Returns how it ended; None while it lives."""
        return self.record.outcome

    @property
    def config(self) -> dict[str, Any]:
        """Returns its configuration with all defaults."""
        return load_document(self.record.config_json)

    def reload(self) -> Experiment:
        """Reads the record again. Returns this object."""
        self.view()
        return self

    def view(self) -> ExperimentView:
        """Returns its present view: the record, its trials with their newest metrics, and its search."""
        view = self._client.get_experiment(self.id)
        self.record = view.experiment
        return view

    def watch(self, timeout: float | None = None) -> Iterator[ExperimentView]:
        """Yields the view now and after each change, until it has ended. Raises GanglineError `rpc.timeout` after
        `timeout` seconds."""
        return self._client.watch_experiment(self.id, timeout)

    def wait(self, timeout: float | None = None, on_progress: OnView = ignore_view) -> Outcome | None:
        """Waits until it has ended, and returns how. on_progress: called with the view now and after each change.
        Raises GanglineError `experiment.wait_timeout` after `timeout` seconds."""
        view = self._client.wait_experiment(self.id, timeout, on_progress)
        self.record = view.experiment
        return self.outcome

    def wait_released(self, timeout: float | None = None) -> None:
        """Waits until its slots are free after `pause`, `cancel` or `kill`. Raises as `wait`."""
        self.record = self._client.wait_released(self.id, timeout).experiment

    def logs(
        self, *, follow: bool = False, tail: int = 0, trial_id: str = "", **options: Unpack[LogOptions]
    ) -> Iterator[LogEntry]:
        """Yields the lines of its trials, oldest first. follow: goes on until it has ended. tail: how many of the last
        ones, 0 for all. options: since, until, ranks, level, agents, pattern; see `LogOptions`."""
        return self._client.stream_logs(self.id, trial_id, tail, follow, **options)

    def metrics(
        self, group: str = "", *, trial_id: str = "", follow: bool = False, attempt: int | None = None
    ) -> MetricsReader:
        """Returns what its trials have reported, oldest first, to be read one by one or with `to_pandas`. group: such
        as "validation"; empty for all. follow: goes on until it has ended. attempt: one attempt of each trial, or 0 for
        all of them; without it, newer attempts replace what older ones reported for the same batches."""
        return MetricsReader(self._client.stream_metrics(self.id, trial_id, group, follow, attempt=attempt))

    def trials(self) -> list[Trial]:
        return [Trial(self._client, entry.trial) for entry in self.view().trials]

    def checkpoints(self) -> list[Checkpoint]:
        return [Checkpoint(self._client, record) for record in self._client.list_checkpoints(self.id)]

    def top_n_checkpoints(
        self, n: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Returns the n checkpoints with the best validation, the best one first. sort_by: a validation metric;
        default: the searcher's. smaller_is_better: needed for another metric than the searcher's.

        Raises GanglineError `checkpoint.no_direction`.
        """
        metric, is_smaller = choose_order(settle(self.record.config_json), sort_by, smaller_is_better)
        checkpoints = self._client.list_checkpoints(self.id)
        best = best_checkpoints(checkpoints, metric, smaller_is_better=is_smaller, limit=n)
        return [Checkpoint(self._client, record) for record in best]

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        """Returns the best one, as `top_n_checkpoints`. Raises GanglineError `checkpoint.none` where no checkpoint was
        validated."""
        best = self.top_n_checkpoints(1, sort_by, smaller_is_better)
        if not best:
            metric = sort_by or "the searcher's metric"
            raise not_found("checkpoint.none", f"experiment {self.id} has no checkpoint with a value of {metric}")
        return best[0]

    def edit(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        notes: str | None = None,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
    ) -> None:
        """Changes its texts and labels, also after its end; a text of None stays. Raises GanglineError `texts.*`."""
        self.record = self._client.edit_experiment(
            self.id,
            name=name,
            description=description,
            notes=notes,
            add_labels=add_labels,
            remove_labels=remove_labels,
        )

    def fork(
        self,
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        *,
        is_paused: bool = False,
        code: str | Path | None = None,
    ) -> Experiment:
        """Creates an experiment with its configuration and its code. overrides: values by dotted keys, such as
        {"searcher.max_length.batches": 200}. code: another folder. Raises GanglineError `config.*`, `code.*`."""
        created = self._client.fork_experiment(self.id, overrides, is_paused=is_paused, code=code)
        return Experiment(self._client, created.experiment, created.warnings)

    def resume(self, overrides: Mapping[str, Any] = NO_OVERRIDES, *, code: str | Path | None = None) -> None:
        """Goes on with its trial after its end, from the newest checkpoint. overrides, code: as for `fork`, such as a
        longer {"searcher.max_length.batches": 200}. Raises GanglineError `config.*`, `code.*`, `experiment.*`."""
        self.record = self._client.continue_experiment(self.id, overrides, code=code).experiment

    def kill(self) -> None:
        """Ends it at once. Killing an ended one changes nothing."""
        self.record = self._client.kill_experiment(self.id)

    def pause(self) -> None:
        """Takes a checkpoint of every trial and gives the slots back until `activate`."""
        self.record = self._client.pause_experiment(self.id)

    def activate(self) -> None:
        """Resumes its trials from their checkpoints."""
        self.record = self._client.activate_experiment(self.id)

    def cancel(self) -> None:
        """Ends it after a checkpoint of every trial."""
        self.record = self._client.cancel_experiment(self.id)

    def archive(self) -> None:
        """Takes it out of listings. It must have ended."""
        self.record = self._client.archive_experiment(self.id)

    def unarchive(self) -> None:
        """Shows it in listings again."""
        self.record = self._client.unarchive_experiment(self.id)

    def delete(self) -> None:
        """Begins to delete it with its files, logs and metrics, for good. It must have ended."""
        self.record = self._client.delete_experiment(self.id) or self.record

    def update(
        self,
        *,
        priority: int | None = None,
        weight: float | None = None,
        max_slots: int | None = None,
        when_free: bool = False,
    ) -> None:
        """Changes its resources. The arguments are those of `Client.update_experiment`."""
        self.record = self._client.update_experiment(
            self.id, priority=priority, weight=weight, max_slots=max_slots, when_free=when_free
        )

    def move(self, *, ahead_of: int | None = None, behind: int | None = None) -> None:
        """Moves it in the queue directly ahead of another experiment, or directly behind it."""
        self.record = self._client.move_experiment(self.id, ahead_of=ahead_of, behind=behind)

    def explain(self) -> Explanation:
        """Explains why it waits, what would start it and when, or where it runs."""
        return self._client.explain(self.id)

    def download_tensorboard(self, folder: str | Path) -> int:
        """Brings a folder up to date with its TensorBoard files. Returns the number of bytes that were fetched."""
        return self._client.download_tensorboard(self.id, Path(folder))


class _PartOfExperiment(Generic[R]):
    """A trial or a checkpoint. record: as of the last call."""

    def __init__(self, client: ExperimentCalls, record: R) -> None:
        self._client = client
        self.record = record

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def experiment_id(self) -> int:
        return self.record.experiment_id


class Trial(_PartOfExperiment[records.Trial]):
    """A trial. record: as of the last call."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.outcome or self.state})"

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def outcome(self) -> Outcome | None:
        """Returns how it ended; None while it lives."""
        return self.record.outcome

    @property
    def hyperparameters(self) -> dict[str, Any]:
        hyperparameters: dict[str, Any] = json.loads(self.record.hyperparameters_json or "{}")
        return hyperparameters

    def reload(self) -> Trial:
        """Reads the record again. Returns this object."""
        self.view()
        return self

    def view(self) -> TrialView:
        """Returns its present view: the record, where it runs or why it waits, and its newest metrics."""
        experiment = self._client.get_experiment(self.experiment_id)
        for view in experiment.trials:
            if view.trial.id == self.id:
                self.record = view.trial
                return view
        raise absent("trial", self.id)

    def experiment(self) -> Experiment:
        """Returns the experiment to which it belongs."""
        return Experiment(self._client, self._client.get_experiment(self.experiment_id).experiment)

    def logs(self, *, follow: bool = False, tail: int = 0, **options: Unpack[LogOptions]) -> Iterator[LogEntry]:
        """Yields its lines, oldest first. The arguments are those of `Experiment.logs`."""
        return self._client.stream_logs(self.experiment_id, self.id, tail, follow, **options)

    def metrics(self, group: str = "", *, follow: bool = False, attempt: int | None = None) -> MetricsReader:
        """Returns what it has reported. The arguments are those of `Experiment.metrics`."""
        return MetricsReader(self._client.stream_metrics(self.experiment_id, self.id, group, follow, attempt=attempt))

    def series(
        self, metric: str, group: str = "training", *, max_points: int = 1000, attempt: int | None = None
    ) -> MetricSeries:
        """Returns one of its metrics in at most max_points points, however long the series is. A longer series keeps
        its first and last value, and the least and the greatest one of equally long runs of reports. attempt: as in
        `Experiment.metrics`."""
        return self._client.get_metric_series(self.id, metric, group, max_points, attempt=attempt)

    def checkpoints(self) -> list[Checkpoint]:
        checkpoints = self._client.list_checkpoints(self.experiment_id)
        return [Checkpoint(self._client, record) for record in checkpoints if record.trial_id == self.id]

    def top_n_checkpoints(
        self, n: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Returns its n best checkpoints, as `Experiment.top_n_checkpoints`."""
        experiment = self._client.get_experiment(self.experiment_id).experiment
        metric, is_smaller = choose_order(settle(experiment.config_json), sort_by, smaller_is_better)
        checkpoints = self._client.list_checkpoints(self.experiment_id)
        own = [record for record in checkpoints if record.trial_id == self.id]
        best = best_checkpoints(own, metric, smaller_is_better=is_smaller, limit=n)
        return [Checkpoint(self._client, record) for record in best]

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        """Returns its best checkpoint, as `Experiment.top_checkpoint`."""
        best = self.top_n_checkpoints(1, sort_by, smaller_is_better)
        if not best:
            metric = sort_by or "the searcher's metric"
            raise not_found("checkpoint.none", f"trial {self.id} has no checkpoint with a value of {metric}")
        return best[0]

    def kill(self) -> None:
        """Ends it at once; the other trials of its experiment go on."""
        self.record = self._client.kill_trial(self.id)

    def profile(self, batches: int = 10) -> TraceOrder:
        """Has its next batches traced, as `Client.profile_trial`."""
        return self._client.profile_trial(self.id, batches)

    def explain(self) -> Explanation:
        """Explains why it waits, what would start it and when, or where it runs."""
        return self._client.explain(self.id)

    def download_output(self, folder: str | Path) -> int:
        """Writes what its processes wrote into $GANGLINE_OUTPUT_DIR into a folder, as `Client.download_output`."""
        return self._client.download_output(self.id, folder)

    def download_tensorboard(self, folder: str | Path) -> int:
        """Brings a folder up to date with its TensorBoard files. Returns the number of bytes that were fetched."""
        return self._client.download_tensorboard(self.experiment_id, Path(folder), self.id)


class Checkpoint(_PartOfExperiment[records.Checkpoint]):
    """A checkpoint. record: as of the last call."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, trial {self.trial_id}, {self.batches_completed} batches)"

    @property
    def trial_id(self) -> str:
        return self.record.trial_id

    @property
    def batches_completed(self) -> int:
        return self.record.batches_completed

    @property
    def state(self) -> CheckpointState:
        return self.record.state

    @property
    def files(self) -> dict[str, int]:
        """Returns the bytes of each file, by its path in the checkpoint."""
        return dict(self.record.file_bytes)

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(self.record.metadata_json or "{}")
        return metadata

    @property
    def validation_metrics(self) -> dict[str, Any]:
        """Returns the metrics of its validation; none for one that was not validated."""
        return metrics_of(self.record)

    def trial(self) -> Trial:
        """Returns the trial that saved it. Raises GanglineError `checkpoint.imported` for one without a trial."""
        if self.record.imported_as:
            raise not_found("checkpoint.imported", f"checkpoint {self.id} was imported, so no trial here saved it")
        return Trial(self._client, self._client.find_trial(self.trial_id))

    def download(self, path: str | Path) -> Path:
        """Writes its files into a folder that is new or empty, whole or not at all. Returns the folder."""
        self._client.download_checkpoint(self.id, Path(path))
        return Path(path)

    def load(
        self, trial_class: type[T], trial_kwargs: Mapping[str, Any] | None = None, *, path: str | Path | None = None
    ) -> T:
        """Downloads it and returns a trial with its states, as gangline.pytorch.load_trial_from_checkpoint_path.

        trial_class: the PyTorchTrial that saved it, because checkpoints hold no code. path: keeps the files in this
        folder. Raises GanglineError `client.no_torch` where torch is not installed.
        """
        config = None
        if not self.record.imported_as:
            config = load_document(self._client.get_experiment(self.experiment_id).experiment.config_json)
        with tempfile.TemporaryDirectory(prefix="gangline-") as scratch:
            folder = self.download(path or Path(scratch) / self.id)
            return in_thread(load_trial, folder, trial_class, trial_kwargs, config)

    def delete(self) -> None:
        """Deletes it; its files are deleted soon after. Raises GanglineError `checkpoint.needed` where a trial would
        resume from it."""
        deleted = self._client.delete_checkpoints([self.id])
        self.record = deleted[0] if deleted else self.record
