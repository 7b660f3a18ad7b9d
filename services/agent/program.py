"""The agent as a program: builds the parts, runs them, and ends them in order when a signal arrives.

SIGTERM and SIGINT end the agent and leave its trial runners alone; the next agent finds them. With
`kill_runners_on_exit` they first preempt every trial, and kill what is left after the grace. A second signal then
shortens the grace to zero. Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import structlog

from gangline.domain.limits import MB
from gangline.domain.peer_name import AGENT, SCHEDULER
from gangline.domain.resource import UndeliveredRecords
from gangline.domain.state import ExitKind
from gangline.errors import invalid
from gangline.protocol import wire
from gangline.protocol.dialer import PLAIN
from gangline.v1 import agent_pb2
from services.agent.agent import AgentIdentity, LocalAgent
from services.agent.allocations.journal import Journal, open_journal
from services.agent.allocations.launcher import Launcher, RunnerProgram
from services.agent.allocations.roster import Roster
from services.agent.allocations.warm import WarmTemplate, spare_options
from services.agent.connection.leader_answers import LeaderAnswers, Outbox
from services.agent.connection.leader_stream import LeaderStream
from services.agent.devices.gpu_health import Policy
from services.agent.devices.monitor import SlotMonitor
from services.agent.devices.slot import Slots, load_slots
from services.agent.machine.code_upkeep import CodeUpkeep
from services.agent.machine.disk_monitor import DiskMonitor
from services.agent.machine.rank_rules import settle_rules
from services.agent.machine.spool_watch import SpoolWatch
from services.agent.machine_report import observe, watch_machine
from services.agent.settings import AgentSettings
from services.common.access.security import drain_token, load_token
from services.common.code_cache import CodeCache, CodeLimits
from services.common.concurrency import cancel
from services.common.huge_pages import with_huge_pages
from services.common.state_folder import StateFolder
from services.common.telemetry import serve_metrics, write_ready_file
from services.common.tls.identity import TlsIdentity, load_identity

DAY_SECONDS = 86400.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger(__name__)


async def run(settings: AgentSettings, program: RunnerProgram) -> None:
    """Runs the agent until a signal asks it to end. Raises GanglineError for an error that an operator must correct."""
    if settings.cluster_token_file is None:
        raise invalid("agent.no_token", "the agent needs the cluster's token; give --cluster-token-file FILE")
    token = load_token(settings.cluster_token_file)
    tls = load_identity(settings.tls, AGENT, settings.id)
    with open_journal(settings.state_dir, settings.keep_ended) as journal:
        exposure = await asyncio.to_thread(settle_rules, settings)
        slots = await asyncio.to_thread(load_slots, settings.id, settings.slots)
        await _Running(settings, program, token, journal, slots, tls=tls, exposure=exposure).run()


class _Running:
    """The parts of one running agent."""

    def __init__(
        self,
        settings: AgentSettings,
        program: RunnerProgram,
        token: str,
        journal: Journal,
        slots: Slots,
        *,
        tls: TlsIdentity | None,
        exposure: str,
    ) -> None:
        self._settings = settings
        self._templates = _make_templates(settings, program, len(slots.slots)) if settings.warm else []
        runner, rank = self._templates or (None, None)
        launcher = Launcher(program, runner, rank.socket_path if rank else "")
        self._outbox: Outbox = asyncio.Queue()
        self._answers = LeaderAnswers(self._outbox)
        roster = Roster(
            settings.id,
            journal,
            launcher,
            self._on_status,
            wait_until_heard=self._answers.wait_until_heard,
            ask_leader=self._answers.ask_leader,
        )
        metrics_address = serve_metrics(settings.metrics_listen) if settings.metrics_listen else ""
        self._metrics_address = settings.advertised(metrics_address) if metrics_address else ""
        identity = AgentIdentity(settings.id, settings.pool, settings.labels, self._metrics_address, exposure)
        policy = Policy(settings.health_confirmations, settings.health_good_checks, settings.health_window_seconds)
        self._monitor = SlotMonitor(slots, policy, settings.health_seconds, settings.state_dir, self._on_slots)
        self._agent = LocalAgent(identity, self._monitor.slots, journal, roster)
        code = CodeCache(StateFolder(settings.state_dir).code_archives)
        code_limits = CodeLimits(int(settings.code_cache_mb * MB), settings.code_cache_days * DAY_SECONDS)
        self._disk = DiskMonitor(
            settings.state_dir,
            settings.health_seconds,
            settings.health_good_checks,
            partial(_make_room, journal, code),
            self._on_disk,
            upkeep=CodeUpkeep(code, code_limits).run,
        )
        state = StateFolder(settings.state_dir)
        self._spools = SpoolWatch(state, drain_token(token, settings.id), roster.is_live, self._on_undelivered)
        # Before a runner starts, which connects by it.
        state.write_tls(tls.files if tls is not None else None, tls.cluster if tls is not None else "")
        dialer = tls.dialer(SCHEDULER) if tls is not None else PLAIN
        self._link = LeaderStream(
            settings.scheduler_addresses, token, self._agent, self._outbox, self._answers, dialer=dialer
        )

    async def run(self) -> None:
        signals = _catch_signals()
        background = [asyncio.create_task(template.run()) for template in self._templates]
        observe(self._agent, self._answers)
        background.append(asyncio.create_task(watch_machine(self._agent, self._link, self._settings.health_seconds)))
        background.append(asyncio.create_task(self._monitor.run()))
        # The first hello must already say whether anything can start here.
        await self._disk.check_once()
        background.append(asyncio.create_task(self._disk.run()))
        self._agent.roster.recover()
        background.append(asyncio.create_task(self._spools.run()))
        link = asyncio.create_task(self._link.run())
        write_ready_file(self._settings.ready_file, metrics=self._metrics_address or None)
        log.info("the agent is up", agent_id=self._settings.id, num_slots=len(self._agent.slots.slots))
        try:
            number = await _first_signal(signals, [link, *background])
            log.info("ending", signal=number.name, kills_runners=self._settings.kill_runners_on_exit)
        finally:
            # The link ends first, so no new work arrives.
            await cancel(link)
            if self._settings.kill_runners_on_exit:
                await self._stop_runners(signals)
            await self._agent.roster.close()
            for task in background:
                await cancel(task)

    def _on_status(self, status: agent_pb2.AllocationStatus) -> None:
        self._outbox.put_nowait(agent_pb2.ConnectRequest(status=status))
        if status.HasField("exit") and wire.enum_member(ExitKind, status.exit.kind) is ExitKind.AGENT_DISK:
            self._disk.hurry()

    def _on_slots(self, slots: Slots) -> None:
        self._agent.slots = slots
        self._outbox.put_nowait(agent_pb2.ConnectRequest(slots=self._agent.slots_message()))

    def _on_disk(self, problem: str) -> None:
        self._agent.problem = problem
        self._outbox.put_nowait(agent_pb2.ConnectRequest(slots=self._agent.slots_message()))

    def _on_undelivered(self, undelivered: tuple[UndeliveredRecords, ...]) -> None:
        self._agent.undelivered = undelivered
        self._outbox.put_nowait(agent_pb2.ConnectRequest(slots=self._agent.slots_message()))

    async def _stop_runners(self, signals: asyncio.Queue[signal.Signals]) -> None:
        reason = "its agent was stopped"
        stopping = asyncio.create_task(self._agent.roster.stop_all(self._settings.exit_grace_seconds, reason))
        again = asyncio.create_task(signals.get())
        await asyncio.wait([stopping, again], return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stopping.done():
            await self._agent.roster.stop_all(0.0, reason)
        await stopping


def _make_room(journal: Journal, code: CodeCache) -> None:
    """Removes everything in the state directory that no running work needs."""
    code.drop()
    journal.drop_kept()


def _make_templates(settings: AgentSettings, program: RunnerProgram, num_slots: int) -> list[WarmTemplate]:
    state = settings.state_dir
    # The runner template loads no torch: runners are cheap, and a CUDA context cannot be forked.
    return [
        WarmTemplate("runner-template", (*program.preload, "services.agent.allocations.runner_entry"), state),
        WarmTemplate(
            "rank-template", program.rank_preload, state, with_huge_pages(os.environ), spare_options(num_slots)
        ),
    ]


def _catch_signals() -> asyncio.Queue[signal.Signals]:
    caught: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, caught.put_nowait, number)
    return caught


async def _first_signal(signals: asyncio.Queue[signal.Signals], tasks: list[asyncio.Task[None]]) -> signal.Signals:
    """Waits for a signal. Raises the error of a task that ended, because none of them should ever end."""
    caught = asyncio.create_task(signals.get())
    done, _ = await asyncio.wait([caught, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not caught:
            caught.cancel()
            task.result()
            raise AssertionError("a long-lived task of the agent ended")
    return caught.result()
