"""The call of SchedulerService that continues an ended experiment."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import structlog

from gangline.config import fork_config
from gangline.config.layer.secret import restore_secrets
from gangline.domain.experiment import Experiment
from gangline.domain.resource import Agent
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import get
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.quota_change import check_submit
from services.scheduler.transition.restart import NewCode, continue_experiment
from services.scheduler.transition.rights import changed
from services.scheduler.transition.submit_check import check_place

_log = structlog.get_logger(__name__)


class RestartCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def ContinueExperiment(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceContinueExperimentRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceContinueExperimentResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        ended = get(term.state, Experiment, request.experiment_id)
        stored = ended.config_json
        # Reading a large configuration takes a tenth of a second.
        config_json, warnings = await asyncio.to_thread(_override, stored, request.overrides_json)
        rules, now, settled = term.context.rules, time.time(), settled_of(config_json)
        warnings += check_place(settled, term.pools, list(term.state.all_of(Agent)))
        warnings += check_submit(term.state, ended.owner, ended.home_id, settled, now)
        num_deleted = request.num_deleted_experiments if request.HasField("num_deleted_experiments") else None
        code = NewCode(request.code_sha256, num_deleted) if request.code_sha256 else None
        change = await term.store.commit_asked(
            changed(
                request.user,
                request.experiment_id,
                "continue",
                lambda records: continue_experiment(
                    records,
                    request.experiment_id,
                    config_json,
                    request.request_id,
                    user=request.user,
                    code=code,
                    rules=rules,
                    now=now,
                ),
            )
        )
        if change:
            _log.info("experiment continues", experiment_id=request.experiment_id, user=request.user)
        experiment = get(term.state, Experiment, request.experiment_id)
        return scheduler_pb2.SchedulerServiceContinueExperimentResponse(
            experiment=wire.to_proto(experiment), revision=term.state.revision, warnings=warnings
        )


def _override(config_json: str, overrides_json: str) -> tuple[str, list[str]]:
    """Returns the configuration with the new values, and warnings. Raises GanglineError `config.*`."""
    try:
        overrides = json.loads(overrides_json or "{}")
    except ValueError:
        overrides = None
    if not isinstance(overrides, dict):
        raise invalid("config.overrides", "the new values are no JSON object of dotted keys and values")
    config, warnings = fork_config(config_json, overrides)
    return restore_secrets(config.model_dump_json(), [config_json]), warnings
