"""The connections of this runner: reports to the scheduler, records to the gateway, a task to its users.

Owns the tasks and the routes of all of them. Every answer may name new addresses. Records that the gateway has not
taken when the runner ends are left to the drainer (`spool_folder.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gangline.domain.peer_name import GATEWAY
from gangline.domain.settled.reading import settle
from gangline.domain.state import TaskKind
from gangline.v1 import runner_pb2
from services.common.concurrency import cancel
from services.common.rank_rules import RankUser
from services.common.state_folder import SharedFolder, StateFolder
from services.trial_runner.delivery.channel_route import route_to_gateways, route_to_leader
from services.trial_runner.delivery.record_stream import RecordStream
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.reporter import FindFault, Reporter
from services.trial_runner.delivery.spool_folder import SpoolFolder
from services.trial_runner.delivery.task_proxy import TaskProxy

# Pause between two looks for gateways that were not there when a task began.
FOLLOW_SECONDS = 2.0
# Kinds of tasks that listen on a socket.
_SERVED_KINDS = (TaskKind.SHELL, TaskKind.NOTEBOOK)

log = structlog.get_logger(__name__)


class Delivery:
    """Delivers reports and records. reporter may be used at once; nothing connects before there is something to send.

    on_trace: called with the number of batches of an order to trace.
    on_over: called with the reason why the attempt is over.
    find_fault: see reporter.py.
    """

    def __init__(
        self,
        spec: runner_pb2.RunnerSpec,
        state: StateFolder,
        spool_folder: SpoolFolder,
        recorder: Recorder,
        *,
        on_trace: Callable[[int], None],
        on_over: Callable[[str], None],
        find_fault: FindFault,
    ) -> None:
        self._on_trace = on_trace
        self._on_over = on_over
        self._task_proxy: TaskProxy | None = None
        self._spec = spec
        self._state = state
        self._spool_folder = spool_folder
        self._routes = (
            route_to_leader(spec.scheduler_addresses, state),
            route_to_gateways(spec.gateway_addresses, state),
        )
        self.reporter = Reporter(
            self._routes[0],
            spec.allocation.id,
            spec.node_rank,
            self._learn,
            on_refusal=recorder.warn,
            find_fault=find_fault,
        )
        self._record_stream = RecordStream(
            spool_folder.spool,
            recorder.has_news,
            self._routes[1],
            spool_id=spool_folder.spool_id,
            trial_id=spec.trial.id,
            on_over=on_over,
        )
        self._tasks = [
            asyncio.create_task(self.reporter.run(spec.token)),
            asyncio.create_task(self._record_stream.run(lambda: spec.token)),
        ]

    def _learn(self, answer: runner_pb2.ReportTrialResponse) -> None:
        """Takes the addresses and orders of an answer. A training may run for weeks, while schedulers and gateways are
        replaced. A full disk ends no reporting."""
        if answer.over_reason:
            self._on_over(answer.over_reason)
        self._routes[0].learn(answer.scheduler_addresses)
        self._learn_gateways(answer.gateway_addresses)
        if answer.HasField("trace"):
            self._on_trace(answer.trace.batches)

    def _learn_gateways(self, addresses: Sequence[str]) -> None:
        """Notes new gateways for this runner, and for the drainer that may have to continue after it."""
        if not self._spool_folder.learn(addresses):
            return
        self._routes[1].learn(addresses)
        if self._task_proxy is not None:
            self._task_proxy.learn(addresses)

    def serve_task(self, folder: SharedFolder, uid: int, user: RankUser | None) -> None:
        """Offers a shell or a notebook to the gateways; does nothing for other work. uid: as which it runs. user: the
        same, where it is another one than the runner's."""
        if settle(self._spec.config_json).task_kind in _SERVED_KINDS:
            self._task_proxy = TaskProxy(
                self._spec.allocation.id,
                self._spec.token,
                folder.task_socket_path,
                folder.task_key_path,
                uid,
                user=user,
                dialer=self._state.dialer(GATEWAY),
            )
            self._task_proxy.learn(self._spool_folder.gateways)
            self._tasks.append(asyncio.create_task(self._follow_gateways()))

    async def _follow_gateways(self) -> None:
        """Learns of gateways that the agent hears of. A task that reports nothing gets no answer that names them."""
        found: list[str] = []
        while True:
            if (news := self._state.load_gateways()) != found:
                found = news
                self._learn_gateways(found)
            await asyncio.sleep(FOLLOW_SECONDS)

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
        self._spool_folder.close()
        return self.reporter.undelivered
