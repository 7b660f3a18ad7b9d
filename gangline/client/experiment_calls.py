"""The calls of the SDK that concern experiments and trials. They return records.

`gangline.client.session.Client` adds the calls that return objects. scripts/generate_async_client.py writes
async_experiment_calls.py from this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from gangline.client import call_message
from gangline.client.attempts import WayBack
from gangline.client.call_message import log_entry, log_filter, new_request_id
from gangline.client.creation_calls import CreationCalls
from gangline.client.record import LogEntry, OnView, ignore_view
from gangline.domain.experiment import Experiment, ResourceChange, TextChange, Trial
from gangline.domain.explanation import Explanation
from gangline.domain.history import NO_FILTER, MetricSeries, StoredMetrics, check_attempt, check_series
from gangline.domain.id import absent, parse_job_id, parse_trial_id
from gangline.domain.search import SearchEvent, SearchOperation
from gangline.domain.state import ExperimentAction, LogLevel, State
from gangline.domain.task import Task
from gangline.domain.trace import TraceOrder, check_batches
from gangline.domain.view import ExperimentView, TaskAccess
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol.rpc import is_unknown_method
from gangline.protocol.wire import from_proto, to_proto
from gangline.v1 import gateway_pb2 as pb

# How many experiments one call lists.
PAGE_SIZE = 100


class ExperimentCalls(CreationCalls):
    """Base of Client."""

    def find_trial(self, trial_id: str) -> Trial:
        """Returns the trial, such as "7.1". Raises GanglineError `id.trial`, `experiment.not_found`,
        `trial.not_found`."""
        view = self.get_experiment(parse_trial_id(trial_id)[0])
        for entry in view.trials:
            if entry.trial.id == trial_id:
                return entry.trial
        raise absent("trial", trial_id)

    def watch_experiment(self, experiment_id: int, seconds: float | None = None) -> Iterator[ExperimentView]:
        """Yields the view now and after each change, until the experiment has ended. It goes on over a gateway's
        restart, and at another gateway.

        seconds: raises GanglineError `rpc.timeout` when the experiment has not ended by then; None waits for ever.
        """
        request, shown = pb.WatchExperimentRequest(experiment_id=experiment_id), None
        way_back = _way_back(experiment_id, "follow")
        for message in self._connection.stream(self._stub.WatchExperiment, lambda: request, seconds, way_back=way_back):
            view = from_proto(ExperimentView, message.view)
            # After a reconnect the stream begins with the present view.
            if view != shown:
                yield view
            shown = view
            if view.experiment.state is State.TERMINAL:
                return

    def wait_experiment(
        self, experiment_id: int, seconds: float | None = None, on_progress: OnView = ignore_view
    ) -> ExperimentView:
        """Waits until it has ended. on_progress: called with the view now and after each change. Raises GanglineError
        `experiment.wait_timeout` when it takes longer than `seconds`."""
        last = None
        try:
            for view in self.watch_experiment(experiment_id, seconds):
                on_progress(view)
                last = view
        except GanglineError as error:
            if error.code != "rpc.timeout":
                raise
            text = f"experiment {experiment_id} has not ended after {seconds:g} s"
            raise GanglineError("experiment.wait_timeout", text, ErrorKind.TIMEOUT) from error
        return last if last is not None else self.get_experiment(experiment_id)

    def wait_released(self, experiment_id: int, seconds: float | None = None) -> ExperimentView:
        """Waits until an experiment that was paused, canceled or killed has given its slots back. Its state changes at
        once, but its ranks run until they have written a checkpoint. Raises GanglineError `experiment.wait_timeout`
        when it takes longer than `seconds`."""
        try:
            for view in self.watch_experiment(experiment_id, seconds):
                if view.is_released:
                    return view
        except GanglineError as error:
            if error.code != "rpc.timeout":
                raise
            text = f"experiment {experiment_id} still holds slots after {seconds:g} s"
            raise GanglineError("experiment.wait_timeout", text, ErrorKind.TIMEOUT) from error
        return self.get_experiment(experiment_id)

    def kill_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Ends it at once. Killing an ended one changes nothing."""
        request = pb.KillExperimentRequest(request_id=request_id or new_request_id(), experiment_id=experiment_id)
        return from_proto(Experiment, self._connection.call(self._stub.KillExperiment, request).experiment)

    def delete_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment | None:
        """Begins to delete an ended experiment with its checkpoints, TensorBoard files, logs and metrics, and its code
        where no other experiment has the same. Returns None when it has been deleted. For its owner and for
        administrators.

        Raises GanglineError `experiment.not_ended`, `experiment.needed` while a trial of another experiment goes on
        from one of its checkpoints, `auth.not_owner`, `experiment.not_found`.
        """
        request = pb.DeleteExperimentRequest(request_id=request_id or new_request_id(), experiment_id=experiment_id)
        answer = self._connection.call(self._stub.DeleteExperiment, request)
        return from_proto(Experiment, answer.experiment) if answer.HasField("experiment") else None

    def get_search_events(
        self, experiment_id: int, num_known: int = 0, wait_seconds: float = 0.0
    ) -> tuple[list[SearchEvent], bool]:
        """Returns the events of a search behind the first `num_known` ones, at most 100, and whether the search takes
        no more operations. wait_seconds: to wait for an event if there is none, at most 20."""
        request = pb.GetSearchEventsRequest(experiment_id=experiment_id, num_known=num_known, wait_seconds=wait_seconds)
        answer = self._connection.call(self._stub.GetSearchEvents, request)
        return [from_proto(SearchEvent, event) for event in answer.events], answer.is_over

    def post_search_operations(
        self,
        experiment_id: int,
        post_number: int,
        operations: Sequence[SearchOperation],
        request_id: str | None = None,
    ) -> None:
        """Has operations of a custom search carried out; gangline.custom_search runs a whole search. post_number: how
        many posts came before it; a post that was carried out before changes nothing. For the experiment's owner and
        for administrators.

        Raises GanglineError `search.*`, `auth.not_owner`, `experiment.not_found`.
        """
        request = pb.PostSearchOperationsRequest(
            request_id=request_id or new_request_id(),
            experiment_id=experiment_id,
            post_number=post_number,
            operations=[to_proto(operation) for operation in operations],
        )
        self._connection.call(self._stub.PostSearchOperations, request)

    def archive_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Takes an ended experiment out of listings; nothing else changes."""
        request = pb.ArchiveExperimentRequest(request_id=request_id or new_request_id(), experiment_id=experiment_id)
        return from_proto(Experiment, self._connection.call(self._stub.ArchiveExperiment, request).experiment)

    def unarchive_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Shows an archived experiment in listings again."""
        request = pb.UnarchiveExperimentRequest(request_id=request_id or new_request_id(), experiment_id=experiment_id)
        return from_proto(Experiment, self._connection.call(self._stub.UnarchiveExperiment, request).experiment)

    def pause_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Pauses it: its trials checkpoint and give their slots back; none starts before it is activated."""
        return self._update(call_message.of_state(experiment_id, ExperimentAction.PAUSE, request_id))

    def activate_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Activates it: its trials resume from their checkpoints. Activating one that is not paused changes nothing."""
        return self._update(call_message.of_state(experiment_id, ExperimentAction.ACTIVATE, request_id))

    def cancel_experiment(self, experiment_id: int, request_id: str | None = None) -> Experiment:
        """Ends it after a checkpoint of each trial."""
        return self._update(call_message.of_state(experiment_id, ExperimentAction.CANCEL, request_id))

    def update_experiment(
        self,
        experiment_id: int,
        *,
        priority: int | None = None,
        weight: float | None = None,
        max_slots: int | None = None,
        when_free: bool = False,
        request_id: str | None = None,
    ) -> Experiment:
        """Changes its resources while it lives; a value of None stays. max_slots: 0 lifts the cap. A cap below what the
        experiment holds makes its newest trials checkpoint and wait again; with when_free they run to their end
        instead."""
        resources = ResourceChange(priority, weight, max_slots, when_free)
        return self._update(call_message.of_resources(experiment_id, resources, request_id))

    def edit_experiment(
        self,
        experiment_id: int,
        *,
        name: str | None = None,
        description: str | None = None,
        notes: str | None = None,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
        request_id: str | None = None,
    ) -> Experiment:
        """Changes its texts and labels, also after its end; a text of None stays. Raises GanglineError `texts.*`."""
        change = TextChange(name, description, notes, tuple(add_labels), tuple(remove_labels))
        return self._update(call_message.of_texts(experiment_id, change, request_id))

    def move_experiment(
        self,
        experiment_id: int,
        *,
        ahead_of: int | None = None,
        behind: int | None = None,
        request_id: str | None = None,
    ) -> Experiment:
        """Moves it directly ahead of another experiment of its pool, or directly behind it, at that one's priority."""
        return self._update(call_message.of_place(experiment_id, ahead_of, behind, request_id))

    def kill_trial(self, trial_id: str, request_id: str | None = None) -> Trial:
        """Ends it at once; the other trials of its experiment go on. Killing an ended one changes nothing."""
        request = pb.KillTrialRequest(request_id=request_id or new_request_id(), trial_id=trial_id)
        return from_proto(Trial, self._connection.call(self._stub.KillTrial, request).trial)

    def profile_trial(self, trial_id: str, batches: int = 10, request_id: str | None = None) -> TraceOrder:
        """Has its next batches, 1 to 50, traced with torch's profiler. Returns at once with the place of the future
        trace. The trial's log reports when the trace begins and when it is written. A second order replaces one that
        has not begun.

        Raises GanglineError `trial.not_running`, and `trace.no_trainer` for a script without Gangline's trainer.
        """
        check_batches(batches)
        request = pb.GatewayServiceProfileTrialRequest(
            request_id=request_id or new_request_id(), trial_id=trial_id, batches=batches
        )
        return from_proto(TraceOrder, self._connection.call(self._stub.ProfileTrial, request).order)

    def stream_logs(
        self,
        experiment_id: int,
        trial_id: str = "",
        tail: int = 0,
        follow: bool = False,
        *,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        ranks: Sequence[int] | int = (),
        level: LogLevel | str = "",
        agents: Sequence[str] | str = (),
        pattern: str = "",
    ) -> Iterator[LogEntry]:
        """Yields log entries, oldest first. tail: how many of the last ones, 0 for all. follow: goes on until the
        experiment has ended.

        The gateway leaves out entries that do not match all of the following. since, until: a time or Unix seconds; an
        entry of the time `until` does not match. ranks, agents: empty for all. level: the least one, such as "warning".
        pattern: of RE2, found anywhere in the text.

        Raises GanglineError `logs.*` for a filter that cannot be carried out, and `logs.unfiltered` for a gateway of an
        older version, which would ignore it.
        """
        wanted = log_filter(since=since, until=until, ranks=ranks, level=level, agents=agents, pattern=pattern)
        read_id, is_begun = 0, False

        def request() -> pb.StreamLogsRequest:
            # After a reconnect the stream goes on behind read_id. The first answer has settled the tail.
            return pb.StreamLogsRequest(
                experiment_id=experiment_id,
                trial_id=trial_id,
                tail=0 if is_begun else tail,
                follow=follow,
                after_id=read_id,
                filter=None if wanted == NO_FILTER else to_proto(wanted),
            )

        way_back = _way_back(experiment_id, "logs -f") if follow else None
        for message in self._connection.stream(self._stub.StreamLogs, request, way_back=way_back):
            is_begun = True
            if message.logs and not message.read_id and wanted != NO_FILTER:
                text = "this gateway is too old to filter logs; upgrade it, or read all lines"
                raise GanglineError("logs.unfiltered", text, ErrorKind.UNAVAILABLE)
            for stored in message.logs:
                # A gateway of an older version begins anew.
                if stored.id > read_id:
                    read_id = stored.id
                    yield log_entry(stored)
            read_id = max(read_id, message.read_id)

    def stream_metrics(
        self,
        experiment_id: int,
        trial_id: str = "",
        group: str = "",
        follow: bool = False,
        *,
        attempt: int | None = None,
    ) -> Iterator[StoredMetrics]:
        """Yields metrics, oldest first. group: limits them to this name, such as "validation"; empty for all. follow:
        goes on until the experiment has ended.

        attempt: one attempt of each trial, or 0 for all of them. Without it, a report counts until a newer attempt has
        reported the same batch or an earlier one. Raises GanglineError `metrics.attempt`."""
        check_attempt(attempt)
        last_id = 0
        request = pb.StreamMetricsRequest(
            experiment_id=experiment_id, trial_id=trial_id, group=group, follow=follow, attempt=attempt
        )
        way_back = _way_back(experiment_id, "metrics -f") if follow else None
        for message in self._connection.stream(self._stub.StreamMetrics, lambda: request, way_back=way_back):
            for stored in message.metrics:
                if stored.id > last_id:
                    last_id = stored.id
                    yield from_proto(StoredMetrics, stored)

    def get_metric_series(
        self,
        trial_id: str,
        metric: str,
        group: str = "training",
        max_points: int = 1000,
        *,
        attempt: int | None = None,
    ) -> MetricSeries:
        """Returns one metric of a trial in at most max_points points (4 to 10,000), oldest first. A longer series
        keeps its first and last value, and the least and the greatest one of equally long runs of reports. attempt: as
        in `stream_metrics`.

        Raises GanglineError `trial.not_found`, `series.*`, `metrics.attempt`, `history.*` and `series.old_gateway`
        for a gateway of an earlier version.
        """
        parse_trial_id(trial_id)
        check_series(metric, max_points)
        check_attempt(attempt)
        request = pb.GetMetricSeriesRequest(
            trial_id=trial_id, group=group, metric=metric, max_points=max_points, attempt=attempt
        )
        try:
            answer = self._connection.call(self._stub.GetMetricSeries, request)
        except GanglineError as error:
            if not is_unknown_method(error):
                raise
            text = "this gateway is too old to shorten a series; upgrade it, or read all reports of the trial"
            raise GanglineError("series.old_gateway", text, ErrorKind.UNAVAILABLE) from error
        return from_proto(MetricSeries, answer.series)

    def list_tasks(self, experiment_id: int = 0, *, workspace: str = "", project: str = "") -> list[Task]:
        """Returns the running tasks, oldest first, then the waiting ones, in the order in which the planner considers
        them.

        experiment_id: 0 for all experiments. workspace, project: only those in it, by name; empty for all.
        """
        request = pb.ListTasksRequest(experiment_id=experiment_id, workspace=workspace, project=project)
        answer = self._connection.call(self._stub.ListTasks, request)
        return [from_proto(Task, message) for message in answer.tasks]

    def explain(self, job_id: int | str) -> Explanation:
        """Explains why an experiment (7) or one of its trials ("7.1") waits, what would start it and when, or where it
        runs.

        Raises GanglineError `id.job`, `experiment.not_found`, `trial.not_found`, and `job.unexplained` for a gateway of
        an older version.
        """
        parse_job_id(str(job_id))
        try:
            answer = self._connection.call(self._stub.ExplainJob, pb.ExplainJobRequest(job_id=str(job_id)))
        except GanglineError as error:
            if not is_unknown_method(error):
                raise
            text = "this gateway is too old to explain a job; upgrade it, or look with: gangline job list"
            raise GanglineError("job.unexplained", text, ErrorKind.UNAVAILABLE) from error
        return from_proto(Explanation, answer.explanation)

    def get_task_access(self, experiment_id: int) -> TaskAccess:
        """Returns how to reach a shell or a notebook. For its owner and for administrators. Raises GanglineError
        `task.no_tunnel`, `auth.not_owner`, `experiment.not_found`."""
        answer = self._connection.call(self._stub.GetTaskAccess, pb.GetTaskAccessRequest(experiment_id=experiment_id))
        return from_proto(TaskAccess, answer.access)

    def _update(self, request: pb.UpdateExperimentRequest) -> Experiment:
        return from_proto(Experiment, self._connection.call(self._stub.UpdateExperiment, request).experiment)


def _way_back(experiment_id: int, command: str) -> WayBack:
    return WayBack(f"experiment {experiment_id}", f"gangline experiment {command} {experiment_id}")
