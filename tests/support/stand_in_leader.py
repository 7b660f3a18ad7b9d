"""A leading scheduler for the gateway's tests: a real gRPC server of SchedulerService that writes experiments into etcd
as the leader would, and can be told to refuse, to stand by or to keep quiet."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, TypeVar

import grpc.aio

from gangline.config.layer.experiment_text import merge_labels
from gangline.config.layer.retention import with_retention
from gangline.domain.allocation import Reason, Request
from gangline.domain.experiment import Checkpoint, Experiment, RetentionChange, TextChange, Trial
from gangline.domain.resource import Agent, ServiceInstance
from gangline.domain.search import SearchPreview
from gangline.domain.state import Availability, CheckpointState, DeletionStage, Outcome, ReasonCode, State
from gangline.domain.trace import TraceOrder
from gangline.errors import GanglineError, not_found
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from services.common import keys
from services.common.access.security import is_same_token
from services.common.etcd import Delete, EtcdClient, Put
from services.common.leader_probe import not_leader
from services.common.server import Principal, Server, serve
from services.scheduler.service.earlier_calls import EarlierCalls
from tests.support.project_calls import UnservedByLeader

R = TypeVar("R")

DEFAULT_PRIORITIES = {"default": 37}


class StandInLeader(EarlierCalls, UnservedByLeader):
    """submissions: every submit that came in, refused ones as well. group_sizes: of each call that brought some."""

    def __init__(self, etcd: EtcdClient, cluster_token: str) -> None:
        self.submissions: list[scheduler_pb2.SubmitExperimentRequest] = []
        self.group_sizes: list[int] = []
        self.agent_changes: list[scheduler_pb2.SchedulerServiceUpdateAgentRequest] = []
        self.experiment_changes: list[scheduler_pb2.SchedulerServiceUpdateExperimentRequest] = []
        self.checkpoint_deletions: list[scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest] = []
        self.deleted_checkpoint_ids: list[str] = []
        self.deleted_stages: list[tuple[int, DeletionStage | None]] = []
        self.trace_orders: list[scheduler_pb2.ProfileTrialRequest] = []
        self.num_pending_calls = 0
        # The planner's input, which the test writes down.
        self.snapshot_json = ""
        # Raised in place of an answer to an import.
        self.import_failure: GanglineError | None = None
        self.is_standby = False
        self.is_quiet = False
        self.address = ""
        self._etcd = etcd
        self._cluster_token = cluster_token
        self._experiment_by_request_id: dict[str, Experiment] = {}
        self._server: Server | None = None

    async def start(self, *, leads: bool = True) -> None:
        def add(server: grpc.aio.Server) -> None:
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)

        self._server = await serve("127.0.0.1:0", add, self._authenticate)
        self.address = self._server.address
        if leads:
            await self.lead()

    async def lead(self) -> None:
        instance = ServiceInstance(id=f"scheduler-{self.address}", kind="scheduler", grpc_address=self.address)
        await self._etcd.commit([Put(keys.LEADER, wire.encode(instance))])

    async def resign(self) -> None:
        await self._etcd.commit([Delete(keys.LEADER)])

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
            self._server = None

    async def SubmitExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SubmitExperimentRequest, context: Any
    ) -> scheduler_pb2.SubmitExperimentResponse:
        self.group_sizes.append(1)
        self.submissions.append(request)
        await self._admit()
        return await self._submit(request)

    async def SubmitExperiments(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SubmitExperimentsRequest, context: Any
    ) -> scheduler_pb2.SubmitExperimentsResponse:
        self.group_sizes.append(len(request.submits))
        self.submissions += request.submits
        await self._admit()
        results = [scheduler_pb2.SubmitResult(created=await self._submit(submit)) for submit in request.submits]
        return scheduler_pb2.SubmitExperimentsResponse(results=results)

    async def _submit(self, request: scheduler_pb2.SubmitExperimentRequest) -> scheduler_pb2.SubmitExperimentResponse:
        earlier = self._experiment_by_request_id.get(request.request_id)
        experiment = earlier or await self._create(request)
        revision = await self._put(keys.experiment(experiment.id), experiment)
        return scheduler_pb2.SubmitExperimentResponse(
            experiment=wire.to_proto(experiment), revision=revision, warnings=["a warning of the scheduler"]
        )

    async def FindExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.FindExperimentRequest, context: Any
    ) -> scheduler_pb2.FindExperimentResponse:
        await self._admit()
        experiment = self._experiment_by_request_id.get(request.request_id)
        return scheduler_pb2.FindExperimentResponse(
            experiment=wire.to_proto(experiment) if experiment is not None else None
        )

    async def KillExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceKillExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceKillExperimentResponse:
        await self._admit()
        item = await self._etcd.get(keys.experiment(request.experiment_id))
        if item is None:
            raise not_found("experiment.not_found", f"there is no experiment {request.experiment_id}")
        revision = await self.end(request.experiment_id, Outcome.CANCELED, f"killed by {request.user}")
        ended = await self._etcd.get(keys.experiment(request.experiment_id))
        assert ended is not None
        experiment = wire.decode(Experiment, ended.value)
        return scheduler_pb2.SchedulerServiceKillExperimentResponse(
            experiment=wire.to_proto(experiment), revision=revision
        )

    async def UpdateExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceUpdateExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        await self._admit()
        assert request.request_id
        experiment = await self._find(Experiment, keys.experiment(request.experiment_id))
        self.experiment_changes.append(request)
        if request.HasField("resources"):
            changed = replace(experiment, config_json=_with_resources(experiment.config_json, request.resources))
        elif request.HasField("texts"):
            texts = wire.from_proto(TextChange, request.texts)
            changed = replace(experiment, labels=merge_labels(experiment.labels, texts))
            changed = replace(changed, name=texts.name or changed.name, notes=texts.notes or changed.notes)
        elif request.HasField("retention"):
            retention = wire.from_proto(RetentionChange, request.retention)
            changed = replace(experiment, config_json=with_retention(experiment.config_json, retention))
        elif request.HasField("move"):
            anchor = await self._find(Experiment, keys.experiment(request.move.anchor_experiment_id))
            changed = replace(experiment, queue_position=anchor.id + (0.5 if request.move.is_behind else -0.5))
        else:
            state = {1: State.PAUSED, 2: State.QUEUED, 3: State.STOPPING}[request.action]
            changed = replace(experiment, state=state, reason=f"{state.lower()} by {request.user}")
        revision = await self._put(keys.experiment(changed.id), changed)
        return scheduler_pb2.SchedulerServiceUpdateExperimentResponse(
            experiment=wire.to_proto(changed), revision=revision
        )

    async def PreviewRetention(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServicePreviewRetentionRequest, context: Any
    ) -> scheduler_pb2.SchedulerServicePreviewRetentionResponse:
        """Would delete all of the experiment's checkpoints, and one that no gateway knows."""
        await self._admit()
        listing = await self._etcd.list(keys.CHECKPOINTS)
        checkpoints = [wire.decode(Checkpoint, item.value) for item in listing.items]
        own = [checkpoint.id for checkpoint in checkpoints if checkpoint.experiment_id == request.experiment_id]
        return scheduler_pb2.SchedulerServicePreviewRetentionResponse(checkpoint_ids=[*own, "too-new"])

    async def KillTrial(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceKillTrialRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceKillTrialResponse:
        await self._admit()
        assert request.request_id
        trial = await self._find(Trial, keys.trial(request.trial_id))
        ended = replace(trial, state=State.TERMINAL, outcome=Outcome.CANCELED, reason=f"killed by {request.user}")
        revision = await self._put(keys.trial(ended.id), ended)
        return scheduler_pb2.SchedulerServiceKillTrialResponse(trial=wire.to_proto(ended), revision=revision)

    async def ProfileTrial(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.ProfileTrialRequest, context: Any
    ) -> scheduler_pb2.ProfileTrialResponse:
        await self._admit()
        assert request.request_id
        self.trace_orders.append(request)
        trial = await self._find(Trial, keys.trial(request.trial_id))
        order = TraceOrder(trial.id, f"{trial.id}.1", request.batches, f"/storage/tensorboard/{trial.id}")
        return scheduler_pb2.ProfileTrialResponse(order=wire.to_proto(order))

    async def UpdateAgent(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceUpdateAgentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceUpdateAgentResponse:
        await self._admit()
        assert request.request_id
        self.agent_changes.append(request)
        agent = await self._find(Agent, keys.agent(request.agent_id))
        availability = wire.enum_member(Availability, request.availability) or Availability.ENABLED
        slots = tuple(
            replace(slot, availability=availability) if slot.id in request.slot_ids else slot for slot in agent.slots
        )
        changed = replace(agent, slots=slots) if request.slot_ids else replace(agent, availability=availability)
        revision = await self._put(keys.agent(changed.id), changed)
        return scheduler_pb2.SchedulerServiceUpdateAgentResponse(agent=wire.to_proto(changed), revision=revision)

    async def GetSnapshot(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.GetSnapshotRequest, context: Any
    ) -> scheduler_pb2.GetSnapshotResponse:
        await self._admit()
        text = self.snapshot_json or json.dumps({"pool": request.pool or "default"})
        return scheduler_pb2.GetSnapshotResponse(snapshot_json=text)

    async def ForgetFusion(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.ForgetFusionRequest, context: Any
    ) -> scheduler_pb2.ForgetFusionResponse:
        await self._admit()
        assert request.request_id
        is_there = await self._etcd.get(keys.fusion(request.key)) is not None
        committed = await self._etcd.commit([Delete(keys.fusion(request.key))])
        return scheduler_pb2.ForgetFusionResponse(is_forgotten=is_there, revision=committed.revision)

    async def DeleteCheckpoints(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse:
        await self._admit()
        assert request.request_id
        self.checkpoint_deletions.append(request)
        checkpoints = [await self._find(Checkpoint, keys.checkpoint(id_)) for id_ in request.checkpoint_ids]
        marked = [replace(checkpoint, state=CheckpointState.DELETING) for checkpoint in checkpoints]
        committed = await self._etcd.commit(
            [Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint)) for checkpoint in marked]
        )
        return scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse(
            checkpoints=[wire.to_proto(checkpoint) for checkpoint in marked], revision=committed.revision
        )

    async def ImportCheckpoint(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceImportCheckpointRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceImportCheckpointResponse:
        await self._admit()
        assert request.request_id
        if self.import_failure is not None:
            raise self.import_failure
        request.checkpoint.owner = request.user
        committed = await self._etcd.commit(
            [Put(keys.checkpoint(request.checkpoint.id), request.checkpoint.SerializeToString())]
        )
        return scheduler_pb2.SchedulerServiceImportCheckpointResponse(
            checkpoint=request.checkpoint, is_new=True, revision=committed.revision
        )

    async def ConfirmCheckpointsDeleted(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.ConfirmCheckpointsDeletedRequest, context: Any
    ) -> scheduler_pb2.ConfirmCheckpointsDeletedResponse:
        await self._admit()
        self.deleted_checkpoint_ids.extend(request.checkpoint_ids)
        committed = await self._etcd.commit([Delete(keys.checkpoint(id_)) for id_ in request.checkpoint_ids])
        return scheduler_pb2.ConfirmCheckpointsDeletedResponse(revision=committed.revision)

    async def DeleteExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceDeleteExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceDeleteExperimentResponse:
        changed, revision = await self._replace(request.experiment_id, deletion=DeletionStage.FILES)
        return scheduler_pb2.SchedulerServiceDeleteExperimentResponse(
            experiment=wire.to_proto(changed), revision=revision
        )

    async def ConfirmExperimentDeleted(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.ConfirmExperimentDeletedRequest, context: Any
    ) -> scheduler_pb2.ConfirmExperimentDeletedResponse:
        """Skips the stage in which the leader removes records."""
        await self._admit()
        stage = wire.enum_member(DeletionStage, request.stage)
        self.deleted_stages.append((request.experiment_id, stage))
        if stage is DeletionStage.CODE:
            committed = await self._etcd.commit([Delete(keys.experiment(request.experiment_id))])
            return scheduler_pb2.ConfirmExperimentDeletedResponse(revision=committed.revision)
        _, revision = await self._replace(request.experiment_id, deletion=DeletionStage.CODE)
        return scheduler_pb2.ConfirmExperimentDeletedResponse(revision=revision)

    async def ArchiveExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceArchiveExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceArchiveExperimentResponse:
        changed, revision = await self._replace(request.experiment_id, archived=True)
        return scheduler_pb2.SchedulerServiceArchiveExperimentResponse(
            experiment=wire.to_proto(changed), revision=revision
        )

    async def GetSearchEvents(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceGetSearchEventsRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceGetSearchEventsResponse:
        return scheduler_pb2.SchedulerServiceGetSearchEventsResponse()

    async def PostSearchOperations(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServicePostSearchOperationsRequest, context: Any
    ) -> scheduler_pb2.SchedulerServicePostSearchOperationsResponse:
        return scheduler_pb2.SchedulerServicePostSearchOperationsResponse()

    async def ContinueExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceContinueExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceContinueExperimentResponse:
        changed, revision = await self._replace(request.experiment_id, state=State.QUEUED, outcome=None)
        return scheduler_pb2.SchedulerServiceContinueExperimentResponse(
            experiment=wire.to_proto(changed), revision=revision
        )

    async def UnarchiveExperiment(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.SchedulerServiceUnarchiveExperimentRequest, context: Any
    ) -> scheduler_pb2.SchedulerServiceUnarchiveExperimentResponse:
        changed, revision = await self._replace(request.experiment_id, archived=False)
        return scheduler_pb2.SchedulerServiceUnarchiveExperimentResponse(
            experiment=wire.to_proto(changed), revision=revision
        )

    async def PreviewSearch(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.PreviewSearchRequest, context: Any
    ) -> scheduler_pb2.PreviewSearchResponse:
        await self._admit()
        points = tuple(f'{{"x": {number}}}' for number in range(request.limit))
        return scheduler_pb2.PreviewSearchResponse(preview=wire.to_proto(SearchPreview("grid", 7, 9, 2, points)))

    async def ListPending(  # noqa: N802  the method's name in the proto
        self, request: scheduler_pb2.ListPendingRequest, context: Any
    ) -> scheduler_pb2.ListPendingResponse:
        self.num_pending_calls += 1
        await self._admit()
        reason = Reason(ReasonCode.NO_CAPACITY, "needs 2 slots; 1 is free", "one more slot is free")
        requests = [wire.decode(Request, item.value) for item in (await self._etcd.list(keys.REQUESTS)).items]
        experiments = [wire.decode(Experiment, item.value) for item in (await self._etcd.list(keys.EXPERIMENTS)).items]
        paused = {experiment.id for experiment in experiments if experiment.state is State.PAUSED}
        held = Reason(ReasonCode.PAUSED, "it is paused", "it is activated")
        return scheduler_pb2.ListPendingResponse(
            default_priority_by_pool=DEFAULT_PRIORITIES,
            pending=[
                scheduler_pb2.PendingRequest(
                    request=wire.to_proto(request),
                    reason=wire.to_proto(held if request.experiment_id in paused else reason),
                )
                for request in requests
            ],
        )

    async def end(self, experiment_id: int, outcome: Outcome, reason: str = "") -> int:
        """Ends the experiment and its first trial in one transaction, as the leader does."""
        experiment = Experiment(
            experiment_id, "digits", "alice", "{}", "", State.TERMINAL, outcome, reason, created_at=1.0, ended_at=2.0
        )
        trial = Trial(f"{experiment_id}.1", experiment_id, 1, state=State.TERMINAL, outcome=outcome)
        committed = await self._etcd.commit(
            [
                Put(keys.experiment(experiment_id), wire.encode(experiment)),
                Put(keys.trial(trial.id), wire.encode(trial)),
                Delete(keys.request(trial.id)),
                Delete(keys.allocation(f"{trial.id}.1")),
            ]
        )
        return committed.revision

    async def _create(self, request: scheduler_pb2.SubmitExperimentRequest) -> Experiment:
        number = len(self._experiment_by_request_id) + 1
        experiment = Experiment(
            number, "digits", request.owner, request.config_json, request.code_sha256,
            request_id=request.request_id, created_at=1.0,
        )  # fmt: skip
        self._experiment_by_request_id[request.request_id] = experiment
        trial = Trial(f"{number}.1", number, 1, created_at=1.0)
        await self._put(keys.trial(trial.id), trial)
        await self._put(keys.request(trial.id), Request(trial.id, number, "default", 2, submitted_at=1.0))
        return experiment

    async def _replace(self, experiment_id: int, **fields: Any) -> tuple[Experiment, int]:
        await self._admit()
        key = keys.experiment(experiment_id)
        changed = replace(await self._find(Experiment, key), **fields)
        return changed, await self._put(key, changed)

    async def _find(self, kind: type[R], key: str) -> R:
        item = await self._etcd.get(key)
        if item is None:
            raise not_found(f"{kind.__name__.lower()}.not_found", f"there is no {key}")
        return wire.decode(kind, item.value)

    async def _put(self, key: str, record: object) -> int:
        return (await self._etcd.commit([Put(key, wire.encode(record))])).revision

    async def _admit(self) -> None:
        if self.is_quiet:
            await asyncio.Event().wait()
        if self.is_standby:
            raise not_leader()

    async def _authenticate(self, _: str, token: str | None) -> Principal:
        assert token is not None
        assert is_same_token(token, self._cluster_token)
        return Principal(kind="cluster", name="cluster")


def _with_resources(config_json: str, change: types_pb2.ResourceChange) -> str:
    config = json.loads(config_json)
    given = {field.name: value for field, value in change.ListFields()}
    return json.dumps(config | {"resources": config.get("resources", {}) | given})
