"""Schedulers as real processes over a test's own etcd, and callers of their services.

Owns starting, pausing and killing them by pid, their ready files and logs. The agents that tests connect to them are in
tests/support/scripted_agent.py.
"""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gangline.config import ExperimentConfig
from gangline.domain.state import Availability, ExperimentAction
from gangline.domain.user import CLUSTER_NAME
from gangline.protocol import rpc, wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc, types_pb2
from services.common.etcd import EtcdSettings
from tests.support.forked_service import ForkedService, fork_service, load_services
from tests.support.source import ROOT
from tests.support.wait import until

PROGRAM = "services.scheduler.__main__"
CLUSTER_TOKEN = "cluster-token-of-the-tests"
ADMIN_TOKEN = "admin-token-of-the-tests"


def config_json(slots: int = 1, **fields: object) -> str:
    """A valid configuration; fields replace or add top-level keys."""
    document: dict[str, object] = {
        "name": "test",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": slots},
        **fields,
    }
    return ExperimentConfig.model_validate(document).model_dump_json()


class SchedulerProcess:
    """One scheduler; may be killed and started again, on another port. address: of its newest life. storage: empty
    where a file of settings names it."""

    address = ""

    def __init__(
        self,
        directory: Path,
        etcd: EtcdSettings,
        name: str = "s1",
        flags: tuple[str, ...] = (),
        *,
        storage: str | None = None,
    ) -> None:
        self.name = name
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        tokens = {"cluster-token": CLUSTER_TOKEN, "admin-token": ADMIN_TOKEN}
        for file, token in tokens.items():
            (directory / file).write_text(token)
        self._ready = directory / f"{name}.ready"
        self.log = directory / f"{name}.log"
        self._arguments = [
            *("--id", name),
            *("--etcd-endpoints", ",".join(etcd.endpoints), "--listen", "127.0.0.1:0"),
            *("--metrics-listen", "127.0.0.1:0"),
            *(() if storage == "" else ("--storage-url", storage or str(directory / "storage"))),
            *("--cluster-token-file", str(directory / "cluster-token")),
            *("--admin-token-file", str(directory / "admin-token")),
            *("--ready-file", str(self._ready), *flags),
        ]
        self.process: ForkedService | None = None

    async def start(self) -> SchedulerProcess:
        """Returns once it leads or stands by."""
        await asyncio.to_thread(load_services)
        process = self._spawn()
        await until(lambda: self._ready.exists() or process.poll() is not None, f"{self.name} being ready", 30)
        assert process.poll() is None, self.log.read_text()
        self.address = str(json.loads(self._ready.read_text())["grpc"])
        return self

    def _spawn(self) -> ForkedService:
        self._ready.unlink(missing_ok=True)
        self.process = fork_service(PROGRAM, self._arguments, self.log, ROOT)
        return self.process

    @property
    def metrics_address(self) -> str:
        return str(json.loads(self._ready.read_text())["metrics"])

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends it and returns its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        return self.process.wait(15)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


class Caller:
    """Calls SchedulerService as a gateway does, of whichever of the schedulers leads."""

    def __init__(self, *schedulers: SchedulerProcess, token: str = CLUSTER_TOKEN) -> None:
        self._schedulers = schedulers
        self._metadata = rpc.token_metadata(token)

    async def submit(
        self, config: str, request_id: str | None = None, owner: str = "ann"
    ) -> scheduler_pb2.SubmitExperimentResponse:
        request = scheduler_pb2.SubmitExperimentRequest(
            request_id=request_id or uuid.uuid4().hex, owner=owner, config_json=config, code_sha256="0" * 64
        )
        answer = await self.call("SubmitExperiment", request)
        assert isinstance(answer, scheduler_pb2.SubmitExperimentResponse)
        return answer

    async def submit_group(self, *submits: scheduler_pb2.SubmitExperimentRequest) -> list[scheduler_pb2.SubmitResult]:
        request = scheduler_pb2.SubmitExperimentsRequest(submits=submits)
        answer = await self.call("SubmitExperiments", request)
        assert isinstance(answer, scheduler_pb2.SubmitExperimentsResponse)
        return list(answer.results)

    async def end(self, experiment_id: int, user: str = "ann") -> scheduler_pb2.SchedulerServiceKillExperimentResponse:
        request = scheduler_pb2.SchedulerServiceKillExperimentRequest(
            request_id="k", experiment_id=experiment_id, user=user
        )
        answer = await self.call("KillExperiment", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceKillExperimentResponse)
        return answer

    async def change(
        self, experiment_id: int, action: ExperimentAction
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        request = scheduler_pb2.SchedulerServiceUpdateExperimentRequest(
            request_id="c", experiment_id=experiment_id, user="ann"
        )
        request.action = wire.enum_number(action)  # type: ignore[assignment]  # protobuf takes the number
        answer = await self.call("UpdateExperiment", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceUpdateExperimentResponse)
        return answer

    async def set_resources(
        self, experiment_id: int, **fields: float
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        """fields: priority, weight, max_slots."""
        resources = types_pb2.ResourceChange(**fields)  # type: ignore[arg-type]  # a test names what it gives
        return await self.change_as(experiment_id, resources=resources)

    async def move(
        self, experiment_id: int, anchor_id: int, is_behind: bool = False
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        return await self.change_as(
            experiment_id, move=types_pb2.QueueMove(anchor_experiment_id=anchor_id, is_behind=is_behind)
        )

    async def change_as(
        self, experiment_id: int, **fields: Any
    ) -> scheduler_pb2.SchedulerServiceUpdateExperimentResponse:
        """fields: of the request."""
        request = scheduler_pb2.SchedulerServiceUpdateExperimentRequest(
            request_id="c", experiment_id=experiment_id, user="ann", **fields
        )
        answer = await self.call("UpdateExperiment", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceUpdateExperimentResponse)
        return answer

    async def change_agent(
        self, agent_id: str, availability: Availability | None, *slot_ids: str, user: str = CLUSTER_NAME
    ) -> scheduler_pb2.SchedulerServiceUpdateAgentResponse:
        """availability: None leaves it out."""
        request = scheduler_pb2.SchedulerServiceUpdateAgentRequest(
            request_id="a", agent_id=agent_id, slot_ids=slot_ids, user=user
        )
        if availability is not None:
            request.availability = wire.enum_number(availability)  # type: ignore[assignment]  # protobuf takes the number
        answer = await self.call("UpdateAgent", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceUpdateAgentResponse)
        return answer

    async def snapshot(self, pool: str = "") -> str:
        """As JSON."""
        answer = await self.call("GetSnapshot", scheduler_pb2.GetSnapshotRequest(pool=pool))
        assert isinstance(answer, scheduler_pb2.GetSnapshotResponse)
        return answer.snapshot_json

    async def end_trial(self, trial_id: str) -> scheduler_pb2.SchedulerServiceKillTrialResponse:
        request = scheduler_pb2.SchedulerServiceKillTrialRequest(request_id="t", trial_id=trial_id, user="ann")
        answer = await self.call("KillTrial", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceKillTrialResponse)
        return answer

    async def profile_trial(self, trial_id: str, batches: int, request_id: str = "p") -> types_pb2.TraceOrder:
        request = scheduler_pb2.ProfileTrialRequest(
            request_id=request_id, trial_id=trial_id, batches=batches, user="ann"
        )
        answer = await self.call("ProfileTrial", request)
        assert isinstance(answer, scheduler_pb2.ProfileTrialResponse)
        return answer.order

    async def delete_checkpoints(
        self, checkpoint_ids: Sequence[str], request_id: str = "d"
    ) -> scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse:
        request = scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest(
            request_id=request_id, checkpoint_ids=checkpoint_ids, user="ann"
        )
        answer = await self.call("DeleteCheckpoints", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceDeleteCheckpointsResponse)
        return answer

    async def confirm_checkpoints_deleted(
        self, checkpoint_ids: Sequence[str]
    ) -> scheduler_pb2.ConfirmCheckpointsDeletedResponse:
        request = scheduler_pb2.ConfirmCheckpointsDeletedRequest(checkpoint_ids=checkpoint_ids)
        answer = await self.call("ConfirmCheckpointsDeleted", request)
        assert isinstance(answer, scheduler_pb2.ConfirmCheckpointsDeletedResponse)
        return answer

    async def delete_experiment(
        self, experiment_id: int, user: str = "ann"
    ) -> scheduler_pb2.SchedulerServiceDeleteExperimentResponse:
        request = scheduler_pb2.SchedulerServiceDeleteExperimentRequest(
            request_id="d", experiment_id=experiment_id, user=user
        )
        answer = await self.call("DeleteExperiment", request)
        assert isinstance(answer, scheduler_pb2.SchedulerServiceDeleteExperimentResponse)
        return answer

    async def preview(self, config: str, limit: int) -> scheduler_pb2.PreviewSearchResponse:
        answer = await self.call("PreviewSearch", scheduler_pb2.PreviewSearchRequest(config_json=config, limit=limit))
        assert isinstance(answer, scheduler_pb2.PreviewSearchResponse)
        return answer

    async def list_pending(self) -> list[scheduler_pb2.PendingRequest]:
        return list((await self._pending()).pending)

    async def default_priorities(self) -> dict[str, int]:
        """By pool."""
        return dict((await self._pending()).default_priority_by_pool)

    async def _pending(self) -> scheduler_pb2.ListPendingResponse:
        answer = await self.call("ListPending", scheduler_pb2.ListPendingRequest())
        assert isinstance(answer, scheduler_pb2.ListPendingResponse)
        return answer

    async def call(self, method: str, request: object) -> object:
        """Raises GanglineError; goes round the schedulers until one leads."""
        async with asyncio.timeout(20):
            while True:
                for scheduler in self._schedulers:
                    try:
                        return await self._call_one(scheduler, method, request)
                    except grpc.aio.AioRpcError as failure:
                        error = rpc.error_of(failure, scheduler.name)
                        may_pass = error.code in ("scheduler.not_leader", "rpc.unreachable")
                        if not may_pass or len(self._schedulers) == 1:
                            raise error from failure
                await asyncio.sleep(0.02)

    async def _call_one(self, scheduler: SchedulerProcess, method: str, request: object) -> object:
        async with grpc.aio.insecure_channel(scheduler.address, options=rpc.CHANNEL_OPTIONS) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            answer: object = await getattr(stub, method)(request, metadata=self._metadata, timeout=10)
            return answer
