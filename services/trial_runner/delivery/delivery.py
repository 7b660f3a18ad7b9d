"""Everything that leaves this runner: reports to the scheduler, records to the gateway.

Owns the tasks of both, and the spool's folder, <state>/spool/<allocation id>-<node rank>. The folder lies outside of
the allocation's folder so that it outlives it, and is made for the first record. Records that the gateway has not taken
when the runner ends are left to the drainer.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from gangline.domain.state import TaskKind
from gangline.v1 import runner_pb2
from services.common.concurrency import cancel
from services.common.drainer_process import start_drainer
from services.common.rank_rules import RankUser
from services.common.state_folder import SharedFolder, StateFolder
from services.trial_runner.delivery import drainer, metrics
from services.trial_runner.delivery.channel_route import route_to_gateways, route_to_leader
from services.trial_runner.delivery.record_stream import RecordStream
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.reporter import Reporter
from services.trial_runner.delivery.spool import Spool
from services.trial_runner.delivery.task_proxy import TaskProxy

# Pause between two looks for gateways that were not there when a task began.
FOLLOW_SECONDS = 2.0
# Kinds of tasks that listen on a socket.
_SERVED_KINDS = (TaskKind.SHELL, TaskKind.NOTEBOOK)

log = structlog.get_logger(__name__)


class Delivery:
    """Delivers reports and records. reporter and recorder may be used at once; nothing connects before there is
    something to send.

    on_trace: set by the runner; called with the number of batches of an order to trace.
    on_over: set by the runner; called with the reason why its attempt is over.
    """

    def __init__(self, spec: runner_pb2.RunnerSpec, agent_id: str, spools: Path) -> None:
        allocation_id, node_rank = spec.allocation.id, spec.node_rank
        self.on_trace: Callable[[int], None] = lambda _: None
        self.on_over: Callable[[str], None] = lambda _: None
        self._spools = spools
        self._folder = spools / f"{allocation_id}-{node_rank}"
        self._has_folder = False
        self._has_target = False
        self._claim: int | None = None
        self._task_proxy: TaskProxy | None = None
        self._spec = spec
        self._spool_id = spool_id = f"{allocation_id}/{node_rank}"
        self._gateways = list(spec.gateway_addresses)
        self._agent_id = agent_id
        self._spool = Spool(
            self._folder,
            make_folder=self._make_folder,
            agent_id=agent_id,
            on_damage=metrics.records_dropped.inc,
        )
        self._state = StateFolder(spools.parent)
        self._routes = (
            route_to_leader(spec.scheduler_addresses),
            route_to_gateways(spec.gateway_addresses, self._state),
        )
        self.recorder = Recorder(self._spool, agent_id)
        self.reporter = Reporter(self._routes[0], allocation_id, node_rank, self._learn, self.recorder.warn)
        self._record_stream = RecordStream(
            self._spool,
            self.recorder.has_news,
            self._routes[1],
            spool_id=spool_id,
            trial_id=spec.trial.id,
            on_over=self._tell_over,
        )
        self._tasks = [
            asyncio.create_task(self.reporter.run(spec.token)),
            asyncio.create_task(self._record_stream.run(lambda: spec.token)),
        ]

    def _tell_over(self, reason: str) -> None:
        self.on_over(reason)

    def _learn(self, answer: runner_pb2.ReportTrialResponse) -> None:
        """Takes the addresses and orders of an answer. A training may run for weeks, while schedulers and gateways are
        replaced. A full disk ends no reporting."""
        if answer.over_reason:
            self.on_over(answer.over_reason)
        self._routes[0].learn(answer.scheduler_addresses)
        self._learn_gateways(answer.gateway_addresses)
        if answer.HasField("trace"):
            self.on_trace(answer.trace.batches)

    def _learn_gateways(self, addresses: Sequence[str]) -> None:
        """Notes new gateways for this runner, and for the drainer that may have to continue after it."""
        if not addresses or list(addresses) == self._gateways:
            return
        self._gateways = list(addresses)
        self._routes[1].learn(self._gateways)
        if self._task_proxy is not None:
            self._task_proxy.learn(self._gateways)
        if self._has_folder:
            self._save_target()

    def _make_folder(self) -> None:
        """Makes and claims the spool's folder. Raises OSError."""
        if self._has_folder:
            return
        # Ranks of other users pass through the state directory, and the drainer's log is in this folder.
        self._spools.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._claim = drainer.claim(self._folder)
        self._has_folder = True
        self._save_target()

    def _save_target(self) -> None:
        try:
            drainer.save_target(
                self._folder,
                spool_id=self._spool_id,
                trial_id=self._spec.trial.id,
                addresses=self._gateways,
                token=self._spec.token,
                agent_id=self._agent_id,
            )
            self._has_target = True
        except OSError as error:
            log.error("cannot write down for the drainer where the gateways are", error=str(error))

    def serve_task(self, folder: SharedFolder, uid: int, user: RankUser | None) -> None:
        """Offers a shell or a notebook to the gateways; does nothing for other work. uid: as which it runs. user: the
        same, where it is another one than the runner's."""
        task = json.loads(self._spec.config_json or "{}").get("task") or {}
        if task.get("kind") in _SERVED_KINDS:
            self._task_proxy = TaskProxy(
                self._spec.allocation.id,
                self._spec.token,
                folder.task_socket_path,
                folder.task_key_path,
                uid,
                user=user,
            )
            self._task_proxy.learn(self._gateways)
            self._tasks.append(asyncio.create_task(self._follow_gateways()))

    async def _follow_gateways(self) -> None:
        """Learns of gateways that the agent hears of. A task that reports nothing gets no answer that names them."""
        found: list[str] = []
        while True:
            if (news := self._state.load_gateways()) != found:
                found = news
                self._learn_gateways(found)
            await asyncio.sleep(FOLLOW_SECONDS)

    def adopt_orphans(self) -> None:
        """Starts the drainer if there are spools whose runner has gone: killed, or ended while the gateway was away."""
        try:
            if drainer.has_orphans(self._spools):
                start_drainer(self._spools)
        except OSError as error:
            log.error("cannot start the drainer; the next runner here tries again", error=str(error))

    async def close(self, deadline_seconds: float) -> list[runner_pb2.TrialReport]:
        """Delivers what it can within the deadline. Returns the reports that no scheduler took, for exit.json."""
        if self._task_proxy is not None:
            task_proxy, self._task_proxy = self._task_proxy, None
            await task_proxy.close()
        await asyncio.gather(self.reporter.drain(deadline_seconds), self._record_stream.drain(deadline_seconds))
        reporting, *_ = self._tasks
        await cancel(reporting)
        await self.reporter.screen()
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a task had ended with an error", error=repr(result))
        for route in self._routes:
            await route.close()
        self._settle_spool()
        return self.reporter.undelivered

    def _settle_spool(self) -> None:
        self._spool.close()
        is_empty = not self._spool.num_waiting
        if not is_empty and not self._has_target:
            # The disk may have room again; without the target the drainer cannot deliver.
            self._save_target()
        if is_empty and self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._claim is not None:
            os.close(self._claim)
        if not is_empty:
            log.warning("records are left to the drainer: the gateway is away", num_records=self._spool.num_waiting)
        self.adopt_orphans()
