"""SchedulerService: what gateways ask of the leader. A standby refuses and names the leader."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace
from typing import Any

import structlog

from gangline.domain.access import Role
from gangline.domain.experiment import (
    Checkpoint,
    Experiment,
    QueueMove,
    ResourceChange,
    RetentionChange,
    TextChange,
    Trial,
)
from gangline.domain.id import absent, check_checkpoint_id
from gangline.domain.resource import Agent
from gangline.domain.state import Availability, ExperimentAction
from gangline.domain.storage.storage_url import check_checkpoint_place, check_file_inside
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.term import Term
from services.scheduler.placement.simulation_file import dump_simulation
from services.scheduler.service.access import require_cluster
from services.scheduler.service.access_calls import AccessChangeCalls
from services.scheduler.service.earlier_calls import EarlierCalls
from services.scheduler.service.quota_calls import QuotaChangeCalls
from services.scheduler.service.registry_change_calls import RegistryChangeCalls
from services.scheduler.service.removal_calls import RemovalChangeCalls
from services.scheduler.service.restart_calls import RestartCalls
from services.scheduler.service.search_calls import SearchCalls
from services.scheduler.service.submitting import submit_group, submit_one
from services.scheduler.service.user_calls import UserChangeCalls
from services.scheduler.state.records import Records, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.state_store import Transition
from services.scheduler.transition.availability import update_availability
from services.scheduler.transition.checkpoint import (
    confirm_checkpoints_deleted,
    delete_checkpoints,
    import_checkpoint,
)
from services.scheduler.transition.end import (
    activate_experiment,
    cancel_experiment,
    kill_experiment,
    kill_trial,
    pause_experiment,
)
from services.scheduler.transition.fusion import check_fusion_key, fusion_forgotten
from services.scheduler.transition.project.text_change import change_texts
from services.scheduler.transition.queue_move import move_experiment, update_resources
from services.scheduler.transition.retention_change import change_retention, preview_retention
from services.scheduler.transition.rights import (
    changed,
    check_administrator,
    check_deletion,
    check_somewhere,
    check_texts,
    check_trial_operation,
    operated,
    sees_experiment,
)
from services.scheduler.transition.submit_check import find_pool, preview

_log = structlog.get_logger(__name__)


class SchedulerService(
    EarlierCalls,
    RemovalChangeCalls,
    RestartCalls,
    SearchCalls,
    RegistryChangeCalls,
    UserChangeCalls,
    QuotaChangeCalls,
    AccessChangeCalls,
):
    def __init__(self, leader_status: LeaderStatus) -> None:
        self._leader_status = leader_status
        self._random = random.SystemRandom()

    async def SubmitExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SubmitExperimentRequest, _context: Any
    ) -> scheduler_pb2.SubmitExperimentResponse:
        require_cluster()
        return await submit_one(self._leader_status.require(), request, self._random)

    async def SubmitExperiments(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SubmitExperimentsRequest, _context: Any
    ) -> scheduler_pb2.SubmitExperimentsResponse:
        require_cluster()
        results = await submit_group(self._leader_status.require(), request.submits, self._random)
        return scheduler_pb2.SubmitExperimentsResponse(results=results)

    async def FindExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.FindExperimentRequest, _context: Any
    ) -> scheduler_pb2.FindExperimentResponse:
        require_cluster()
        term = self._leader_status.require()
        # An empty change passes once everything before it is settled, and fails while etcd cannot settle it.
        await term.store.commit_asked(lambda _: StateChange())
        experiment = term.state.experiment_of_request(request.request_id)
        return scheduler_pb2.FindExperimentResponse(
            experiment=wire.to_proto(experiment) if experiment is not None else None, revision=term.state.revision
        )

    async def KillExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceKillExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceKillExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        reason = f"killed by {request.user or 'a user'}"
        rules, now = term.context.rules, time.time()
        change = await term.store.commit_asked(
            operated(
                request.user,
                request.experiment_id,
                "kill",
                lambda records: kill_experiment(records, request.experiment_id, reason, rules, now),
            )
        )
        if change:
            _log.info("experiment is killed", experiment_id=request.experiment_id, reason=reason)
        experiment = get(term.state, Experiment, request.experiment_id)
        return scheduler_pb2.SchedulerServiceKillExperimentResponse(
            experiment=wire.to_proto(experiment), revision=term.state.revision
        )

    async def UpdateExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceUpdateExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        transition = _checked(request, _change_of(request, term, time.time()))
        change = await term.store.commit_asked(transition)
        experiment = get(term.state, Experiment, request.experiment_id)
        if change:
            _log.info("experiment is changed", experiment_id=experiment.id, state=str(experiment.state))
        answer = wire.to_proto(experiment)
        return scheduler_pb2.SchedulerServiceUpdateExperimentResponse(experiment=answer, revision=term.state.revision)

    async def KillTrial(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceKillTrialRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceKillTrialResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        reason = f"killed by {request.user or 'a user'}"
        rules, now = term.context.rules, time.time()

        def kill(records: Records) -> StateChange:
            check_trial_operation(records, request.user, request.trial_id, "kill")
            return kill_trial(records, request.trial_id, reason, rules, now)

        change = await term.store.commit_asked(kill)
        if change:
            _log.info("trial is killed", trial_id=request.trial_id, reason=reason)
        trial = get(term.state, Trial, request.trial_id)
        return scheduler_pb2.SchedulerServiceKillTrialResponse(trial=wire.to_proto(trial), revision=term.state.revision)

    async def ProfileTrial(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ProfileTrialRequest, _context: Any
    ) -> scheduler_pb2.ProfileTrialResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        check_trial_operation(term.state, request.user, request.trial_id, "trace")
        order = term.traces.place(term.state, request.trial_id, request.batches, request.request_id)
        _log.info("a trace is ordered", trial_id=order.trial_id, batches=order.batches, user=request.user)
        return scheduler_pb2.ProfileTrialResponse(order=wire.to_proto(order))

    async def UpdateAgent(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceUpdateAgentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceUpdateAgentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        availability = wire.enum_member(Availability, request.availability)
        if availability is None:
            raise invalid("request.availability", f"{request.availability} is no availability that this version knows")
        rules, now = term.context.rules, time.time()

        def update(records: Records) -> StateChange:
            check_administrator(records, request.user, "enable, drain or disable agents and slots")
            return update_availability(records, request.agent_id, request.slot_ids, availability, rules=rules, now=now)

        change = await term.store.commit_asked(update)
        if change:
            _log.info(
                "availability is changed",
                agent_id=request.agent_id,
                slot_ids=list(request.slot_ids),
                availability=str(availability),
                user=request.user,
            )
        agent = get(term.state, Agent, request.agent_id)
        return scheduler_pb2.SchedulerServiceUpdateAgentResponse(
            agent=wire.to_proto(agent), revision=term.state.revision
        )

    async def GetSnapshot(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.GetSnapshotRequest, _context: Any
    ) -> scheduler_pb2.GetSnapshotResponse:
        require_cluster()
        term = self._leader_status.require()
        pool = find_pool(request.pool, term.pools)
        now = time.time()
        snapshot = term.loop.take_snapshot(now)
        # Of a large cluster it is megabytes.
        text = await asyncio.to_thread(lambda: json.dumps(dump_simulation(snapshot, pool.name, now)))
        return scheduler_pb2.GetSnapshotResponse(snapshot_json=text)

    async def ForgetFusion(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ForgetFusionRequest, _context: Any
    ) -> scheduler_pb2.ForgetFusionResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        check_fusion_key(request.key)

        def forget(records: Records) -> StateChange:
            check_somewhere(records, request.user, Role.EDITOR, "delete records of tensor fusion")
            return fusion_forgotten(records, request.key)

        change = await term.store.commit_asked(forget)
        if change:
            _log.info("a fusion record is forgotten", key=request.key, user=request.user)
        return scheduler_pb2.ForgetFusionResponse(is_forgotten=bool(change), revision=term.state.revision)

    async def DeleteCheckpoints(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        checkpoint_ids = list(request.checkpoint_ids)

        def delete(records: Records) -> StateChange:
            check_deletion(records, request.user, checkpoint_ids)
            return delete_checkpoints(records, checkpoint_ids, request.request_id)

        change = await term.store.commit_asked(delete)
        if change:
            _log.info("checkpoints are to be deleted", checkpoint_ids=checkpoint_ids, user=request.user)
        marked = (term.state.find(Checkpoint, checkpoint_id) for checkpoint_id in dict.fromkeys(checkpoint_ids))
        return scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse(
            checkpoints=[wire.to_proto(checkpoint) for checkpoint in marked if checkpoint is not None],
            revision=term.state.revision,
        )

    async def ImportCheckpoint(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceImportCheckpointRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceImportCheckpointResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        # The gateway has checked what a user may choose. The time and the owner are the leader's own.
        checkpoint = replace(
            wire.from_proto(Checkpoint, request.checkpoint), created_at=time.time(), owner=request.user
        )
        check_checkpoint_id(checkpoint.id)
        check_checkpoint_place(checkpoint.url, checkpoint.id)
        for path in checkpoint.file_bytes:
            check_file_inside(path)

        def add(records: Records) -> StateChange:
            check_somewhere(records, request.user, Role.EDITOR, "import checkpoints")
            return import_checkpoint(records, checkpoint)

        change = await term.store.commit_asked(add)
        if change:
            _log.info("a checkpoint is imported", checkpoint_id=checkpoint.id, user=request.user)
        return scheduler_pb2.SchedulerServiceImportCheckpointResponse(
            checkpoint=wire.to_proto(get(term.state, Checkpoint, checkpoint.id)),
            is_new=bool(change),
            revision=term.state.revision,
        )

    async def ConfirmCheckpointsDeleted(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.ConfirmCheckpointsDeletedRequest, _context: Any
    ) -> scheduler_pb2.ConfirmCheckpointsDeletedResponse:
        require_cluster()
        term = self._leader_status.require()
        checkpoint_ids = list(request.checkpoint_ids)
        change = await term.store.commit_asked(lambda records: confirm_checkpoints_deleted(records, checkpoint_ids))
        if change:
            _log.info("checkpoints are deleted", checkpoint_ids=checkpoint_ids)
        return scheduler_pb2.ConfirmCheckpointsDeletedResponse(revision=term.state.revision)

    async def PreviewRetention(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServicePreviewRetentionRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServicePreviewRetentionResponse:
        require_cluster()
        term = self._leader_status.require()
        retention = wire.from_proto(RetentionChange, request.retention)
        checkpoints = preview_retention(term.state, request.experiment_id, retention)
        return scheduler_pb2.SchedulerServicePreviewRetentionResponse(
            checkpoint_ids=[checkpoint.id for checkpoint in checkpoints]
        )

    async def PreviewSearch(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.PreviewSearchRequest, _context: Any
    ) -> scheduler_pb2.PreviewSearchResponse:
        require_cluster()
        term = self._leader_status.require()
        agents = list(term.state.all_of(Agent))
        # Up to 2000 draws of a millisecond each.
        search_preview = await asyncio.to_thread(
            preview, request.config_json, request.limit, self._random, term.pools, agents
        )
        return scheduler_pb2.PreviewSearchResponse(preview=wire.to_proto(search_preview))

    async def ListPending(  # noqa: N802 - grpc's name
        self, _request: scheduler_pb2.ListPendingRequest, _context: Any
    ) -> scheduler_pb2.ListPendingResponse:
        require_cluster()
        term = self._leader_status.require()
        pending = [
            scheduler_pb2.PendingRequest(request=wire.to_proto(request), reason=wire.to_proto(reason))
            for request, reason in term.loop.pending()
        ]
        defaults = {pool.name: pool.default_priority for pool in term.pools}
        return scheduler_pb2.ListPendingResponse(pending=pending, default_priority_by_pool=defaults)


def _checked(request: scheduler_pb2.SchedulerServiceUpdateExperimentRequest, transition: Transition) -> Transition:
    """Returns the transition with the check of the user's rights."""
    if request.HasField("texts"):
        texts = wire.from_proto(TextChange, request.texts)

        def change(records: Records) -> StateChange:
            experiment = records.find(Experiment, request.experiment_id)
            if experiment is not None:
                check_texts(records, request.user, experiment, texts)
            return transition(records)

        return change
    if request.HasField("move"):
        anchor_id = request.move.anchor_experiment_id

        def move(records: Records) -> StateChange:
            if not sees_experiment(records, request.user, anchor_id):
                raise absent("experiment", anchor_id)
            return transition(records)

        return operated(request.user, request.experiment_id, "move", move)
    check = changed if request.HasField("retention") else operated
    return check(request.user, request.experiment_id, "change", transition)


def _change_of(request: scheduler_pb2.SchedulerServiceUpdateExperimentRequest, term: Term, now: float) -> Transition:
    """Raises GanglineError `request.not_one` unless it says exactly one thing."""
    change_names = ["action"] if request.action else []
    change_names += [name for name in ("resources", "move", "texts", "retention") if request.HasField(name)]
    if len(change_names) != 1:
        raise invalid(
            "request.not_one",
            "a change is one of action, resources, move, texts and retention; this one has "
            f"{' and '.join(change_names) or 'none'}",
        )
    experiment_id, rules = request.experiment_id, term.context.rules
    if request.HasField("resources"):
        resources = wire.from_proto(ResourceChange, request.resources)
        return lambda records: update_resources(records, experiment_id, resources, rules=rules, now=now)
    if request.HasField("texts"):
        texts = wire.from_proto(TextChange, request.texts)
        return lambda records: change_texts(records, experiment_id, texts)
    if request.HasField("retention"):
        retention = wire.from_proto(RetentionChange, request.retention)
        return lambda records: change_retention(records, experiment_id, retention)
    if request.HasField("move"):
        move = wire.from_proto(QueueMove, request.move)
        policies = {pool.name: pool.policy for pool in term.pools}
        return lambda records: move_experiment(
            records, experiment_id, move, policy_by_pool=policies, rules=rules, now=now
        )
    return _acting(request, rules, now)


def _acting(request: scheduler_pb2.SchedulerServiceUpdateExperimentRequest, rules: Rules, now: float) -> Transition:
    experiment_id, user = request.experiment_id, request.user or "a user"
    match wire.enum_member(ExperimentAction, request.action):
        case ExperimentAction.PAUSE:
            return lambda records: pause_experiment(records, experiment_id, f"paused by {user}", rules, now)
        case ExperimentAction.ACTIVATE:
            return lambda records: activate_experiment(records, experiment_id, rules, now)
        case ExperimentAction.CANCEL:
            return lambda records: cancel_experiment(records, experiment_id, f"canceled by {user}", rules, now)
        case _:
            raise invalid("request.action", f"{request.action} is no action of an experiment that this version knows")
