"""GatewayService: one method for each call, each of them one use case and a mapping."""

# ruff: noqa: N802  the methods are named by the proto

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from gangline.domain.experiment import ExperimentFilter
from gangline.domain.history import LogFilter
from gangline.domain.id import experiment_id_of
from gangline.domain.state import Availability, UsageGroup
from gangline.domain.storage.checkpoint_import import ImportedFile
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import gateway_pb2 as pb
from services.gateway.audit.attempt import current_attempt
from services.gateway.mirror.ingest_record import Scope
from services.gateway.rpc import mapping
from services.gateway.rpc.access_calls import AccessCalls
from services.gateway.rpc.project_calls import ProjectCalls
from services.gateway.rpc.quota_calls import QuotaCalls
from services.gateway.rpc.registry_calls import RegistryCalls
from services.gateway.rpc.removal_calls import RemovalCalls
from services.gateway.rpc.saved_view_calls import SavedViewCalls
from services.gateway.rpc.task_calls import TaskCalls
from services.gateway.rpc.user_calls import UserCalls

Context = Any


class GatewayService(
    RemovalCalls, ProjectCalls, RegistryCalls, SavedViewCalls, TaskCalls, UserCalls, QuotaCalls, AccessCalls
):
    """Serves the gateway's calls. services.common.server authenticates callers and maps errors to statuses."""

    async def UploadCode(
        self, request_iterator: AsyncIterator[pb.UploadCodeRequest], context: Context
    ) -> pb.UploadCodeResponse:
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise invalid("code.bad_sha256", "the upload was empty; its first message names the sha256")
        attempt = current_attempt()
        if attempt is not None:
            attempt.name_object("code", first.code_sha256)
        stored = await self._cases(first).code.upload(first.code_sha256, _chunks(first, request_iterator))
        return pb.UploadCodeResponse(code_sha256=stored)

    async def DownloadCode(
        self, request: pb.DownloadCodeRequest, context: Context
    ) -> AsyncIterator[pb.DownloadCodeResponse]:
        async for chunk in self._cases(request).code.read(request.experiment_id, request.version):
            yield pb.DownloadCodeResponse(chunk=chunk)

    async def CreateExperiment(
        self, request: pb.CreateExperimentRequest, context: Context
    ) -> pb.CreateExperimentResponse:
        experiment, warnings = await self._cases(request).experiments.create(
            request.config_json,
            request.code_sha256,
            request.template,
            is_paused=request.paused,
            forked_from=request.forked_from,
        )
        return pb.CreateExperimentResponse(experiment=wire.to_proto(experiment), warnings=warnings)

    async def ListExperiments(self, request: pb.ListExperimentsRequest, context: Context) -> pb.ListExperimentsResponse:
        cases = self._cases(request)
        experiments = cases.experiments
        if request.request_id:
            listed = [await experiments.find(request.request_id)]
        else:
            archived = request.archived if request.HasField("archived") else None
            project_ids = await cases.projects.select(request.workspace, request.project, request.project_id)
            listed, _ = experiments.list(
                request.limit,
                request.before_id,
                archived,
                project_ids=project_ids,
                wanted=wire.from_proto(ExperimentFilter, request.filter),
            )
        progress = experiments.progress(listed)
        return pb.ListExperimentsResponse(
            experiments=[wire.to_proto(experiment) for experiment in listed],
            progress=[wire.to_proto(item) for item in progress],
        )

    async def GetExperiment(self, request: pb.GetExperimentRequest, context: Context) -> pb.GetExperimentResponse:
        view = await self._cases(request).experiments.view(request.experiment_id)
        return pb.GetExperimentResponse(view=wire.to_proto(view))

    async def WatchExperiment(
        self, request: pb.WatchExperimentRequest, context: Context
    ) -> AsyncIterator[pb.WatchExperimentResponse]:
        async for view in self._cases(request).experiments.watch(request.experiment_id):
            yield pb.WatchExperimentResponse(view=wire.to_proto(view))

    async def KillExperiment(self, request: pb.KillExperimentRequest, context: Context) -> pb.KillExperimentResponse:
        experiment = await self._cases(request).experiments.kill(request.experiment_id)
        return pb.KillExperimentResponse(experiment=wire.to_proto(experiment))

    async def UpdateExperiment(
        self, request: pb.UpdateExperimentRequest, context: Context
    ) -> pb.UpdateExperimentResponse:
        experiment = await self._cases(request).experiments.update(
            request.experiment_id, mapping.changes_from_proto(request)
        )
        return pb.UpdateExperimentResponse(experiment=wire.to_proto(experiment))

    async def KillTrial(self, request: pb.KillTrialRequest, context: Context) -> pb.KillTrialResponse:
        trial = await self._cases(request).experiments.kill_trial(request.trial_id)
        return pb.KillTrialResponse(trial=wire.to_proto(trial))

    async def ProfileTrial(
        self, request: pb.GatewayServiceProfileTrialRequest, context: Context
    ) -> pb.GatewayServiceProfileTrialResponse:
        order = await self._cases(request).experiments.profile_trial(request.trial_id, request.batches)
        return pb.GatewayServiceProfileTrialResponse(order=wire.to_proto(order))

    async def PreviewSearch(
        self, request: pb.GatewayServicePreviewSearchRequest, context: Context
    ) -> pb.GatewayServicePreviewSearchResponse:
        preview = await self._cases(request).experiments.preview_search(request.config_json, request.limit)
        return pb.GatewayServicePreviewSearchResponse(preview=wire.to_proto(preview))

    async def GetSearchEvents(self, request: pb.GetSearchEventsRequest, context: Context) -> pb.GetSearchEventsResponse:
        events, is_over = await self._cases(request).experiments.search_events(
            request.experiment_id, request.num_known, request.wait_seconds
        )
        return pb.GetSearchEventsResponse(events=[wire.to_proto(event) for event in events], is_over=is_over)

    async def PostSearchOperations(
        self, request: pb.PostSearchOperationsRequest, context: Context
    ) -> pb.PostSearchOperationsResponse:
        operations = mapping.operations_from_proto(request)
        await self._cases(request).experiments.post_operations(request.experiment_id, request.post_number, operations)
        return pb.PostSearchOperationsResponse()

    async def StreamLogs(self, request: pb.StreamLogsRequest, context: Context) -> AsyncIterator[pb.StreamLogsResponse]:
        pages = self._cases(request).records.logs(
            Scope(request.experiment_id, request.trial_id),
            tail=request.tail,
            after_id=request.after_id,
            follow=request.follow,
            wanted=wire.from_proto(LogFilter, request.filter),
        )
        async for page in pages:
            yield pb.StreamLogsResponse(logs=[wire.to_proto(row) for row in page.rows], read_id=page.last_id)

    async def StreamMetrics(
        self, request: pb.StreamMetricsRequest, context: Context
    ) -> AsyncIterator[pb.StreamMetricsResponse]:
        scope = Scope(request.experiment_id, request.trial_id, request.group, _attempt_of(request))
        async for page in self._cases(request).records.metrics(scope, follow=request.follow):
            yield pb.StreamMetricsResponse(metrics=[wire.to_proto(row) for row in page])

    async def GetMetricSeries(self, request: pb.GetMetricSeriesRequest, context: Context) -> pb.GetMetricSeriesResponse:
        records = self._cases(request).records
        scope = Scope(experiment_id_of(request.trial_id), request.trial_id, request.group, _attempt_of(request))
        series = await records.series(scope, request.metric, request.max_points)
        return pb.GetMetricSeriesResponse(series=wire.to_proto(series))

    async def ListTasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        cases = self._cases(request)
        project_ids = await cases.projects.select(request.workspace, request.project)
        tasks = await cases.queue.list_tasks(request.experiment_id, project_ids)
        return pb.ListTasksResponse(tasks=[wire.to_proto(task) for task in tasks])

    async def ExplainJob(self, request: pb.ExplainJobRequest, context: Context) -> pb.ExplainJobResponse:
        explanation = await self._cases(request).queue.explain(request.job_id)
        return pb.ExplainJobResponse(explanation=wire.to_proto(explanation))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        views = self._cases(request).agents.list()
        return pb.ListAgentsResponse(agents=[wire.to_proto(view) for view in views])

    async def UpdateAgent(self, request: pb.UpdateAgentRequest, context: Context) -> pb.UpdateAgentResponse:
        agent = await self._cases(request).agents.update(
            request.agent_id,
            request.slot_ids,
            wire.enum_member(Availability, request.availability),
        )
        return pb.UpdateAgentResponse(agent=wire.to_proto(agent))

    async def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Context) -> pb.ListCheckpointsResponse:
        checkpoints = await self._cases(request).checkpoints.list(request.experiment_id, request.checkpoint_id)
        return pb.ListCheckpointsResponse(checkpoints=[wire.to_proto(checkpoint) for checkpoint in checkpoints])

    async def ImportCheckpoint(
        self, request_iterator: AsyncIterator[pb.ImportCheckpointRequest], context: Context
    ) -> pb.ImportCheckpointResponse:
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise invalid("checkpoint.upload", "the upload was empty; its first message describes the files")
        files = [ImportedFile(file.path, file.bytes, file.sha256) for file in first.files]
        chunks = (request.chunk async for request in request_iterator)
        checkpoint, is_new = await self._cases(first).checkpoint_imports.run(
            chunks,
            name=first.name,
            metadata_json=first.metadata_json,
            files=files,
        )
        return pb.ImportCheckpointResponse(checkpoint=wire.to_proto(checkpoint), is_new=is_new)

    async def DownloadCheckpoint(
        self, request: pb.DownloadCheckpointRequest, context: Context
    ) -> AsyncIterator[pb.DownloadCheckpointResponse]:
        shown = None
        checkpoints = self._cases(request).checkpoints
        total = sum(checkpoints.find(request.checkpoint_id).file_bytes.values())
        async for path, chunk in checkpoints.download(request.checkpoint_id):
            answer = pb.DownloadCheckpointResponse(path=path if path != shown else "", chunk=chunk)
            answer.total_bytes, shown, total = total, path, 0
            yield answer

    async def DownloadOutput(
        self, request: pb.DownloadOutputRequest, context: Context
    ) -> AsyncIterator[pb.DownloadOutputResponse]:
        shown = None
        async for path, chunk, total in self._cases(request).outputs.download(request.trial_id):
            is_first, is_new, shown = shown is None, path != shown, path
            yield pb.DownloadOutputResponse(
                path=path if is_new else "", chunk=chunk, total_bytes=total if is_first else 0
            )

    async def DownloadTensorboard(
        self, request: pb.DownloadTensorboardRequest, context: Context
    ) -> AsyncIterator[pb.DownloadTensorboardResponse]:
        shown = None
        pieces = self._cases(request).tensorboard.download(
            request.experiment_id, request.trial_id, request.num_bytes_by_path
        )
        async for piece in pieces:
            is_new = piece.path != shown
            yield pb.DownloadTensorboardResponse(
                path=piece.path if is_new else "", offset=piece.offset if is_new else 0, chunk=piece.content
            )
            shown = piece.path

    async def DeleteCheckpoints(
        self, request: pb.DeleteCheckpointsRequest, context: Context
    ) -> pb.DeleteCheckpointsResponse:
        checkpoints = await self._cases(request).checkpoints.delete(request.checkpoint_ids)
        return pb.DeleteCheckpointsResponse(checkpoints=[wire.to_proto(checkpoint) for checkpoint in checkpoints])

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        report = await self._cases(request).usage.report(
            request.since, request.until, wire.enum_member(UsageGroup, request.by)
        )
        return pb.GetUsageResponse(report=wire.to_proto(report))

    async def GetCluster(self, request: pb.GetClusterRequest, context: Context) -> pb.GetClusterResponse:
        cluster: pb.GetClusterResponse = wire.to_proto(self._cases(request).clusters.describe())
        return cluster

    async def GetSnapshot(
        self, request: pb.GatewayServiceGetSnapshotRequest, context: Context
    ) -> pb.GatewayServiceGetSnapshotResponse:
        snapshot_json = await self._cases(request).queue.snapshot(request.pool)
        return pb.GatewayServiceGetSnapshotResponse(snapshot_json=snapshot_json)

    async def ListFusion(self, request: pb.ListFusionRequest, context: Context) -> pb.ListFusionResponse:
        records = self._cases(request).fusion.list()
        return pb.ListFusionResponse(records=[wire.to_proto(record) for record in records])

    async def ForgetFusion(
        self, request: pb.GatewayServiceForgetFusionRequest, context: Context
    ) -> pb.GatewayServiceForgetFusionResponse:
        is_forgotten = await self._cases(request).fusion.forget(request.key)
        return pb.GatewayServiceForgetFusionResponse(is_forgotten=is_forgotten)


async def _chunks(first: pb.UploadCodeRequest, following: AsyncIterator[pb.UploadCodeRequest]) -> AsyncIterator[bytes]:
    yield first.chunk
    async for request in following:
        yield request.chunk


def _attempt_of(request: pb.StreamMetricsRequest | pb.GetMetricSeriesRequest) -> int | None:
    return request.attempt if request.HasField("attempt") else None
