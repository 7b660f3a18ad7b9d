"""A gateway for the tests of the client and the command line: a real gRPC server with a state that a test writes down.

It stores what is uploaded and created, answers a request id that it has seen with what that made, and can be told to
fail calls or to lose its connections in the middle of a stream.
"""

# ruff: noqa: N802 - the names of the calls are those of gateway.proto

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar, cast

import grpc

from gangline.config.layer.retention import with_retention
from gangline.domain.allocation import Reason
from gangline.domain.experiment import METADATA_FILE, Experiment, ExperimentFilter, RetentionChange, TextChange, Trial
from gangline.domain.explanation import explain
from gangline.domain.id import parse_job_id
from gangline.domain.resource import Agent
from gangline.domain.task import Task
from gangline.errors import Effect, GanglineError, not_found, unauthenticated
from gangline.protocol import rpc, wire
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import gateway_pb2_grpc, types_pb2
from tests.support.model_calls import StandInModels
from tests.support.project_calls import StandInProjects
from tests.support.user_calls import StandInUsers

TOKEN = "token-of-the-tests"
T = TypeVar("T")


_STATE_AFTER = {
    types_pb2.EXPERIMENT_ACTION_PAUSE: types_pb2.STATE_PAUSED,
    types_pb2.EXPERIMENT_ACTION_ACTIVATE: types_pb2.STATE_QUEUED,
    types_pb2.EXPERIMENT_ACTION_CANCEL: types_pb2.STATE_STOPPING,
}


class StandInGateway(StandInProjects, StandInModels, StandInUsers):
    """failures: what the next calls fail with, first one first. before_answer: called before each answer that is no
    stream. calls: the names of all calls, in order. num_catch_ups: how many of them asked the gateway to catch up with
    etcd first.

    create_failures: what the next creates fail with: before they have made an experiment where the effect is NONE, else
    after it.

    knows_filters: False for a gateway of an earlier version, which ignores the filters of logs and the id of a
    checkpoint. One that knows them records the filters of logs here and filters no log.

    num_threads: how many calls and streams are served at a time.

    break_after: a stream ends as if the connection was lost after so many messages, once; None for never.
    """

    def __init__(self, num_threads: int = 8) -> None:
        super().__init__()
        self._num_threads = num_threads
        self.failures: list[GanglineError] = []
        self.create_failures: list[GanglineError] = []
        self.before_answer: Callable[[], object] = lambda: None
        # Called when a client has left the watch of an experiment that has not ended.
        self.on_gone: Callable[[], object] = lambda: None
        self.calls: list[str] = []
        self.num_catch_ups = 0
        self.break_after: int | None = None
        self.knows_filters = True
        self.codes: dict[str, bytes] = {}
        self.requests: list[pb.CreateExperimentRequest] = []
        self.continues: list[pb.ContinueExperimentRequest] = []
        self.updates: list[pb.UpdateExperimentRequest] = []
        self.agent_updates: list[pb.UpdateAgentRequest] = []
        self.trace_orders: list[pb.GatewayServiceProfileTrialRequest] = []
        self.warnings: list[str] = []
        self.experiments: dict[int, types_pb2.Experiment] = {}
        self.deleted_ids: list[int] = []
        self.usage_requests: list[pb.GetUsageRequest] = []
        self.usage = pb.UsageReport(by=types_pb2.USAGE_GROUP_OWNER)
        # Set once all views of an experiment that has not ended were sent.
        self.is_watched = threading.Event()
        self.progress: dict[int, pb.ExperimentProgress] = {}
        self.views: dict[int, list[pb.ExperimentView]] = {}
        self.logs: list[pb.StoredLog] = []
        self.log_requests: list[pb.StreamLogsRequest] = []
        self.metrics: list[pb.StoredMetrics] = []
        self.tasks: list[pb.Task] = []
        self.agents: list[pb.AgentView] = []
        self.checkpoints: list[types_pb2.Checkpoint] = []
        self.checkpoint_requests: list[pb.ListCheckpointsRequest] = []
        self.fusion: list[types_pb2.FusionRecord] = []
        self.files: dict[str, bytes] = {}
        # What DownloadTensorboard sends, as far as the caller does not have it.
        self.event_files: dict[str, bytes] = {}
        self.preview = types_pb2.SearchPreview()
        self.snapshot_json = "{}"
        self.cluster = pb.GetClusterResponse(version="0.1.0")
        self.address = ""
        self._server: grpc.Server | None = None

    def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.server(ThreadPoolExecutor(self._num_threads), options=rpc.SERVER_OPTIONS)
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(cast("Any", self), self._server)
        host, _, _ = address.rpartition(":")
        self.address = f"{host}:{self._server.add_insecure_port(address)}"
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def UploadCode(self, requests: Iterator[pb.UploadCodeRequest], context: Any) -> pb.UploadCodeResponse:
        def handle() -> pb.UploadCodeResponse:
            first = next(requests)
            payload = first.chunk + b"".join(message.chunk for message in requests)
            assert hashlib.sha256(payload).hexdigest() == first.code_sha256
            self.codes[first.code_sha256] = payload
            return pb.UploadCodeResponse(code_sha256=first.code_sha256)

        return self._answer("UploadCode", context, handle)

    def DownloadCode(self, request: pb.DownloadCodeRequest, context: Any) -> Iterator[pb.DownloadCodeResponse]:
        def handle() -> Iterator[pb.DownloadCodeResponse]:
            yield pb.DownloadCodeResponse(chunk=self.codes[self._experiment(request.experiment_id).code_sha256])

        yield from self._stream("DownloadCode", context, handle)

    def CreateExperiment(self, request: pb.CreateExperimentRequest, context: Any) -> pb.CreateExperimentResponse:
        def handle() -> pb.CreateExperimentResponse:
            failure = self.create_failures.pop(0) if self.create_failures else None
            if failure is not None and failure.effect is Effect.NONE:
                raise failure
            matches = [e for e in self.experiments.values() if e.request_id == request.request_id]
            if not matches:
                number = len(self.experiments) + 1
                matches = [
                    types_pb2.Experiment(
                        id=number,
                        name="digits",
                        owner="admin",
                        config_json=request.config_json,
                        code_sha256=request.code_sha256,
                        state=types_pb2.STATE_PAUSED if request.paused else types_pb2.STATE_QUEUED,
                        forked_from=request.forked_from,
                        request_id=request.request_id,
                        created_at=1000.0,
                    )
                ]
                self.experiments[number] = matches[0]
            self.requests.append(request)
            if failure is not None:
                raise failure
            return pb.CreateExperimentResponse(experiment=matches[0], warnings=self.warnings)

        return self._answer("CreateExperiment", context, handle)

    def ListExperiments(self, request: pb.ListExperimentsRequest, context: Any) -> pb.ListExperimentsResponse:
        def handle() -> pb.ListExperimentsResponse:
            newest = sorted(self.experiments.values(), key=lambda e: -e.id)
            matches = [e for e in newest if not request.before_id or e.id < request.before_id]
            if request.request_id:
                matches = [e for e in newest if e.request_id == request.request_id]
            if request.HasField("archived"):
                matches = [e for e in matches if e.archived == request.archived]
            if self.knows_filters:
                wanted = wire.from_proto(ExperimentFilter, request.filter)
                matches = [e for e in matches if wanted.matches(wire.from_proto(Experiment, e))]
            listed = matches[: request.limit or 50]
            progress = [self.progress[experiment.id] for experiment in listed if experiment.id in self.progress]
            return pb.ListExperimentsResponse(experiments=listed, progress=progress)

        return self._answer("ListExperiments", context, handle)

    def GetExperiment(self, request: pb.GetExperimentRequest, context: Any) -> pb.GetExperimentResponse:
        return self._answer(
            "GetExperiment", context, lambda: pb.GetExperimentResponse(view=self._views(request.experiment_id)[-1])
        )

    def WatchExperiment(self, request: pb.WatchExperimentRequest, context: Any) -> Iterator[pb.WatchExperimentResponse]:
        def handle() -> Iterator[pb.WatchExperimentResponse]:
            views = self._views(request.experiment_id)
            return self._watch(views, context)

        yield from self._stream("WatchExperiment", context, handle)

    def KillExperiment(self, request: pb.KillExperimentRequest, context: Any) -> pb.KillExperimentResponse:
        def handle() -> pb.KillExperimentResponse:
            assert request.request_id
            experiment = self._experiment(request.experiment_id)
            if experiment.state != types_pb2.STATE_TERMINAL:
                experiment.state, experiment.outcome = types_pb2.STATE_TERMINAL, types_pb2.OUTCOME_CANCELED
            return pb.KillExperimentResponse(experiment=experiment)

        return self._answer("KillExperiment", context, handle)

    def DeleteExperiment(self, request: pb.DeleteExperimentRequest, context: Any) -> pb.DeleteExperimentResponse:
        """The first call begins; the next one finds that it has ended."""

        def handle() -> pb.DeleteExperimentResponse:
            assert request.request_id
            if request.experiment_id in self.deleted_ids:
                return pb.DeleteExperimentResponse()
            experiment = self._experiment(request.experiment_id)
            self.deleted_ids.append(request.experiment_id)
            del self.experiments[request.experiment_id]
            return pb.DeleteExperimentResponse(experiment=experiment)

        return self._answer("DeleteExperiment", context, handle)

    def ArchiveExperiment(self, request: pb.ArchiveExperimentRequest, context: Any) -> pb.ArchiveExperimentResponse:
        def handle() -> pb.ArchiveExperimentResponse:
            assert request.request_id
            experiment = self._experiment(request.experiment_id)
            experiment.archived = True
            return pb.ArchiveExperimentResponse(experiment=experiment)

        return self._answer("ArchiveExperiment", context, handle)

    def GetSearchEvents(self, request: pb.GetSearchEventsRequest, context: Any) -> pb.GetSearchEventsResponse:
        return self._answer("GetSearchEvents", context, lambda: pb.GetSearchEventsResponse(is_over=True))

    def PostSearchOperations(
        self, request: pb.PostSearchOperationsRequest, context: Any
    ) -> pb.PostSearchOperationsResponse:
        return self._answer("PostSearchOperations", context, pb.PostSearchOperationsResponse)

    def ContinueExperiment(self, request: pb.ContinueExperimentRequest, context: Any) -> pb.ContinueExperimentResponse:
        def handle() -> pb.ContinueExperimentResponse:
            self.continues.append(request)
            experiment = self.experiments[request.experiment_id]
            experiment.state = types_pb2.STATE_QUEUED
            return pb.ContinueExperimentResponse(experiment=experiment, warnings=self.warnings)

        return self._answer("ContinueExperiment", context, handle)

    def UnarchiveExperiment(
        self, request: pb.UnarchiveExperimentRequest, context: Any
    ) -> pb.UnarchiveExperimentResponse:
        def handle() -> pb.UnarchiveExperimentResponse:
            assert request.request_id
            experiment = self._experiment(request.experiment_id)
            experiment.archived = False
            return pb.UnarchiveExperimentResponse(experiment=experiment)

        return self._answer("UnarchiveExperiment", context, handle)

    def UpdateExperiment(self, request: pb.UpdateExperimentRequest, context: Any) -> pb.UpdateExperimentResponse:
        def handle() -> pb.UpdateExperimentResponse:
            assert request.request_id
            experiment = self._experiment(request.experiment_id)
            self.updates.append(request)
            if request.action:
                experiment.state = _STATE_AFTER[request.action]
            elif request.HasField("resources"):
                _change_resources(experiment, request.resources)
            elif request.HasField("texts"):
                texts = wire.from_proto(TextChange, request.texts)
                experiment.name, experiment.notes = texts.name or experiment.name, texts.notes or experiment.notes
                labels = {*experiment.labels, *texts.add_labels} - {*texts.remove_labels}
                experiment.labels[:] = sorted(labels)
            elif request.HasField("retention"):
                change = wire.from_proto(RetentionChange, request.retention)
                experiment.config_json = with_retention(experiment.config_json or "{}", change)
            else:
                self._experiment(request.move.anchor_experiment_id)
            return pb.UpdateExperimentResponse(experiment=experiment)

        return self._answer("UpdateExperiment", context, handle)

    def PreviewRetention(self, request: pb.PreviewRetentionRequest, context: Any) -> pb.PreviewRetentionResponse:
        def handle() -> pb.PreviewRetentionResponse:
            self._experiment(request.experiment_id)
            own = [each for each in self.checkpoints if each.experiment_id == request.experiment_id]
            return pb.PreviewRetentionResponse(checkpoints=own)

        return self._answer("PreviewRetention", context, handle)

    def KillTrial(self, request: pb.KillTrialRequest, context: Any) -> pb.KillTrialResponse:
        def handle() -> pb.KillTrialResponse:
            assert request.request_id
            trials = [view.trial for views in self.views.values() for view in views[-1].trials]
            trial = next((trial for trial in trials if trial.id == request.trial_id), None)
            if trial is None:
                raise not_found("trial.not_found", f"there is no trial {request.trial_id}")
            trial.state, trial.outcome = types_pb2.STATE_TERMINAL, types_pb2.OUTCOME_CANCELED
            return pb.KillTrialResponse(trial=trial)

        return self._answer("KillTrial", context, handle)

    def ProfileTrial(
        self, request: pb.GatewayServiceProfileTrialRequest, context: Any
    ) -> pb.GatewayServiceProfileTrialResponse:
        def handle() -> pb.GatewayServiceProfileTrialResponse:
            assert request.request_id
            self.trace_orders.append(request)
            order = types_pb2.TraceOrder(
                trial_id=request.trial_id,
                allocation_id=f"{request.trial_id}.1",
                batches=request.batches,
                tensorboard_url=f"file:///storage/tensorboard/{request.trial_id}",
            )
            return pb.GatewayServiceProfileTrialResponse(order=order)

        return self._answer("ProfileTrial", context, handle)

    def PreviewSearch(
        self, request: pb.GatewayServicePreviewSearchRequest, context: Any
    ) -> pb.GatewayServicePreviewSearchResponse:
        return self._answer(
            "PreviewSearch", context, lambda: pb.GatewayServicePreviewSearchResponse(preview=self.preview)
        )

    def StreamLogs(self, request: pb.StreamLogsRequest, context: Any) -> Iterator[pb.StreamLogsResponse]:
        def handle() -> Iterator[pb.StreamLogsResponse]:
            self.log_requests.append(request)
            after_id = request.after_id if self.knows_filters else 0
            wanted = [log for log in self.logs if request.trial_id in ("", log.trial_id) and log.id > after_id]
            return (
                pb.StreamLogsResponse(logs=[log], read_id=log.id if self.knows_filters else 0)
                for log in wanted[-request.tail :]
            )

        yield from self._stream("StreamLogs", context, handle)

    def StreamMetrics(self, request: pb.StreamMetricsRequest, context: Any) -> Iterator[pb.StreamMetricsResponse]:
        def handle() -> Iterator[pb.StreamMetricsResponse]:
            wanted = [entry for entry in self.metrics if request.group in ("", entry.point.group)]
            return (pb.StreamMetricsResponse(metrics=[entry]) for entry in wanted)

        yield from self._stream("StreamMetrics", context, handle)

    def GetMetricSeries(self, request: pb.GetMetricSeriesRequest, context: Any) -> pb.GetMetricSeriesResponse:
        def handle() -> pb.GetMetricSeriesResponse:
            points = [
                pb.SeriesPoint(
                    batches_completed=entry.point.batches_completed,
                    at=entry.at,
                    value=entry.point.metrics[request.metric],
                )
                for entry in self.metrics
                if (entry.trial_id, entry.point.group) == (request.trial_id, request.group)
                and request.metric in entry.point.metrics
            ]
            series = pb.MetricSeries(
                trial_id=request.trial_id,
                group=request.group,
                metric=request.metric,
                points=points[: request.max_points],
                num_values=len(points),
            )
            return pb.GetMetricSeriesResponse(series=series)

        return self._answer("GetMetricSeries", context, handle)

    def GetTaskAccess(self, request: pb.GetTaskAccessRequest, context: Any) -> pb.GetTaskAccessResponse:
        return self._answer("GetTaskAccess", context, pb.GetTaskAccessResponse)

    def ConnectTask(self, request_iterator: Any, context: Any) -> Any:
        """Ends each connection at once: only real tasks carry bytes."""
        return iter(())

    def ListTasks(self, request: pb.ListTasksRequest, context: Any) -> pb.ListTasksResponse:
        wanted = [task for task in self.tasks if request.experiment_id in (0, task.trial.experiment_id)]
        return self._answer("ListTasks", context, lambda: pb.ListTasksResponse(tasks=wanted))

    def ExplainJob(self, request: pb.ExplainJobRequest, context: Any) -> pb.ExplainJobResponse:
        def handle() -> pb.ExplainJobResponse:
            experiment_id, trial_id = parse_job_id(request.job_id)
            view = self._views(experiment_id)[-1]
            explanation = explain(
                wire.from_proto(Experiment, view.experiment),
                wire.from_proto(Reason, view.reason) if view.HasField("reason") else None,
                [wire.from_proto(Trial, trial.trial) for trial in view.trials],
                [wire.from_proto(Task, task) for task in self.tasks],
                [wire.from_proto(Agent, agent.agent) for agent in self.agents],
                trial_id=trial_id,
            )
            return pb.ExplainJobResponse(explanation=wire.to_proto(explanation))

        return self._answer("ExplainJob", context, handle)

    def ListAgents(self, request: pb.ListAgentsRequest, context: Any) -> pb.ListAgentsResponse:
        return self._answer("ListAgents", context, lambda: pb.ListAgentsResponse(agents=self.agents))

    def UpdateAgent(self, request: pb.UpdateAgentRequest, context: Any) -> pb.UpdateAgentResponse:
        def handle() -> pb.UpdateAgentResponse:
            assert request.request_id
            self.agent_updates.append(request)
            agent = next((view.agent for view in self.agents if view.agent.id == request.agent_id), None)
            if agent is None:
                raise not_found("agent.not_found", f"there is no agent {request.agent_id!r}")
            changed = [slot for slot in agent.slots if slot.id in request.slot_ids] if request.slot_ids else [agent]
            for item in changed:
                item.availability = request.availability
            return pb.UpdateAgentResponse(agent=agent)

        return self._answer("UpdateAgent", context, handle)

    def GetSnapshot(
        self, request: pb.GatewayServiceGetSnapshotRequest, context: Any
    ) -> pb.GatewayServiceGetSnapshotResponse:
        def handle() -> pb.GatewayServiceGetSnapshotResponse:
            if request.pool not in ("", "default"):
                raise not_found("pool.not_found", f"there is no pool {request.pool!r}")
            return pb.GatewayServiceGetSnapshotResponse(snapshot_json=self.snapshot_json)

        return self._answer("GetSnapshot", context, handle)

    def ListFusion(self, request: pb.ListFusionRequest, context: Any) -> pb.ListFusionResponse:
        return self._answer("ListFusion", context, lambda: pb.ListFusionResponse(records=self.fusion))

    def ForgetFusion(
        self, request: pb.GatewayServiceForgetFusionRequest, context: Any
    ) -> pb.GatewayServiceForgetFusionResponse:
        def handle() -> pb.GatewayServiceForgetFusionResponse:
            kept = [record for record in self.fusion if record.key != request.key]
            is_forgotten = len(kept) < len(self.fusion)
            self.fusion = kept
            return pb.GatewayServiceForgetFusionResponse(is_forgotten=is_forgotten)

        return self._answer("ForgetFusion", context, handle)

    def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Any) -> pb.ListCheckpointsResponse:
        def handle() -> pb.ListCheckpointsResponse:
            wanted = [c for c in self.checkpoints if request.experiment_id in (0, c.experiment_id)]
            self.checkpoint_requests.append(request)
            if self.knows_filters and request.checkpoint_id:
                wanted = [c for c in wanted if c.id == request.checkpoint_id]
            return pb.ListCheckpointsResponse(checkpoints=wanted)

        return self._answer("ListCheckpoints", context, handle)

    def ImportCheckpoint(
        self, request_iterator: Iterator[pb.ImportCheckpointRequest], context: Any
    ) -> pb.ImportCheckpointResponse:
        def handle() -> pb.ImportCheckpointResponse:
            first = next(request_iterator)
            content = b"".join(request.chunk for request in request_iterator)
            assert len(content) == sum(file.bytes for file in first.files)
            checkpoint = types_pb2.Checkpoint(id="imported", imported_as=first.name, metadata_json=first.metadata_json)
            return pb.ImportCheckpointResponse(checkpoint=checkpoint, is_new=True)

        return self._answer("ImportCheckpoint", context, handle)

    def DownloadCheckpoint(
        self, request: pb.DownloadCheckpointRequest, context: Any
    ) -> Iterator[pb.DownloadCheckpointResponse]:
        def handle() -> Iterator[pb.DownloadCheckpointResponse]:
            if all(checkpoint.id != request.checkpoint_id for checkpoint in self.checkpoints):
                raise not_found("checkpoint.not_found", f"there is no checkpoint {request.checkpoint_id}")
            return self._chunks()

        yield from self._stream("DownloadCheckpoint", context, handle)

    def DownloadOutput(self, request: pb.DownloadOutputRequest, context: Any) -> Iterator[pb.DownloadOutputResponse]:
        def handle() -> Iterator[pb.DownloadOutputResponse]:
            total = sum(map(len, self.files.values()))
            for path, content in self.files.items():
                yield pb.DownloadOutputResponse(path=path, chunk=content, total_bytes=total)
                total = 0

        yield from self._stream("DownloadOutput", context, handle)

    def DownloadTensorboard(
        self, request: pb.DownloadTensorboardRequest, context: Any
    ) -> Iterator[pb.DownloadTensorboardResponse]:
        def handle() -> Iterator[pb.DownloadTensorboardResponse]:
            for path, content in self.event_files.items():
                offset = request.num_bytes_by_path.get(path, 0)
                if offset < len(content):
                    yield pb.DownloadTensorboardResponse(path=path, offset=offset, chunk=content[offset:])

        yield from self._stream("DownloadTensorboard", context, handle)

    def DeleteCheckpoints(self, request: pb.DeleteCheckpointsRequest, context: Any) -> pb.DeleteCheckpointsResponse:
        def handle() -> pb.DeleteCheckpointsResponse:
            by_id = {checkpoint.id: checkpoint for checkpoint in self.checkpoints}
            for checkpoint_id in request.checkpoint_ids:
                if checkpoint_id not in by_id:
                    raise not_found("checkpoint.not_found", f"there is no checkpoint {checkpoint_id}")
            for checkpoint_id in request.checkpoint_ids:
                by_id[checkpoint_id].state = types_pb2.CHECKPOINT_STATE_DELETING
            return pb.DeleteCheckpointsResponse(
                checkpoints=[by_id[checkpoint_id] for checkpoint_id in request.checkpoint_ids]
            )

        return self._answer("DeleteCheckpoints", context, handle)

    def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.GetUsageResponse:
        def handle() -> pb.GetUsageResponse:
            self.usage_requests.append(request)
            return pb.GetUsageResponse(report=self.usage)

        return self._answer("GetUsage", context, handle)

    def GetCluster(self, request: pb.GetClusterRequest, context: Any) -> pb.GetClusterResponse:
        return self._answer("GetCluster", context, lambda: self.cluster)

    def _chunks(self) -> Iterator[pb.DownloadCheckpointResponse]:
        total = sum(len(content) for path, content in self.files.items() if path != METADATA_FILE)
        for path, content in self.files.items():
            half = len(content) // 2
            yield pb.DownloadCheckpointResponse(path=path, chunk=content[:half], total_bytes=total)
            total = 0
            yield pb.DownloadCheckpointResponse(chunk=content[half:])

    def _watch(self, views: list[pb.ExperimentView], context: Any) -> Iterator[pb.WatchExperimentResponse]:
        yield from (pb.WatchExperimentResponse(view=view) for view in views)
        if views[-1].experiment.state != types_pb2.STATE_TERMINAL:
            self.is_watched.set()
            # As with the real one, nothing more happens, and the client goes when its patience is over.
            has_gone = threading.Event()
            assert not context.add_callback(has_gone.set) or has_gone.wait(60)
            self.on_gone()

    def _views(self, number: int) -> list[pb.ExperimentView]:
        experiment = self._experiment(number)
        return self.views.get(number) or [pb.ExperimentView(experiment=experiment)]

    def _experiment(self, number: int) -> types_pb2.Experiment:
        if number not in self.experiments:
            raise not_found("experiment.not_found", f"there is no experiment {number}")
        return self.experiments[number]

    def _answer(self, name: str, context: Any, handle: Callable[[], T]) -> T:
        try:
            self._admit(name, context)
            self.before_answer()
            return handle()
        except GanglineError as error:
            _abort(context, error)

    def _stream(self, name: str, context: Any, handle: Callable[[], Iterator[T]]) -> Iterator[T]:
        try:
            self._admit(name, context)
            messages = handle()
        except GanglineError as error:
            _abort(context, error)
        for sent, message in enumerate(messages):
            if sent == self.break_after:
                self.break_after = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
            yield message

    def _admit(self, name: str, context: Any) -> None:
        self.calls.append(name)
        self.num_catch_ups += rpc.asks_to_catch_up(context.invocation_metadata())
        if rpc.find_token(context.invocation_metadata()) not in (TOKEN, self.session or TOKEN):
            raise unauthenticated("auth.wrong_token", "nobody holds this token; look into the admin.token file")
        if self.failures:
            raise self.failures.pop(0)


def _change_resources(experiment: types_pb2.Experiment, change: types_pb2.ResourceChange) -> None:
    config = json.loads(experiment.config_json)
    given = {field.name: value for field, value in change.ListFields()}
    experiment.config_json = json.dumps(config | {"resources": config.get("resources", {}) | given})


def _abort(context: Any, error: GanglineError) -> NoReturn:
    status, message, metadata = rpc.status_of(error)
    context.set_trailing_metadata(metadata)
    context.abort(status, message)
    raise AssertionError("abort raises")
