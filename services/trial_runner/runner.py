"""The lifecycle of one trial runner: prepare, rendezvous, start the ranks, watch them, report how they ended.

Owns the order of the steps, the start's timeline and the last report; each step is a module beside this one.
`program.py` builds the runner with the allocation's folder, which holds spec.json and will hold exit.json; see
exit_file.py. The runner continues without scheduler and gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from gangline.domain.allocation import ExitReport
from gangline.domain.failure import hang_rule_of, log_rules_of
from gangline.domain.state import ExitKind, LogLevel
from gangline.errors import GanglineError
from gangline.launch.child import descendants
from gangline.protocol.wire import enum_member, prepare
from gangline.v1 import rank_pb2, runner_pb2
from services.common.concurrency import first_of
from services.common.disk_fault import find_disk_fault, is_disk_fault
from services.common.state_folder import SharedFolder
from services.trial_runner import exit_file
from services.trial_runner.attempt_lease import QUIET_SECONDS, AttemptLease
from services.trial_runner.container_setup import AttemptFiles, make_container
from services.trial_runner.delivery.delivery import Delivery
from services.trial_runner.delivery.relay import CHIEF, Relay
from services.trial_runner.delivery.running_report import RunningReport
from services.trial_runner.fusion_records import FusionRecords
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Network, describe_start, find_place, load_config
from services.trial_runner.gang.outcome import (
    FailureRecord,
    OutcomeContext,
    describe_failure,
    find_cause,
    first_cause,
    judge,
    signature_of,
)
from services.trial_runner.gang.rendezvous import RendezvousFailed
from services.trial_runner.last_report import LastReport
from services.trial_runner.output import Output
from services.trial_runner.preparation import Preparation
from services.trial_runner.rank_setup import RankSetup, RankStart
from services.trial_runner.ranks import confinement
from services.trial_runner.ranks.log_policy import LogPolicyMatcher
from services.trial_runner.ranks.log_pump import LAST_LINES, LogPump
from services.trial_runner.ranks.nursery_client import NurseryProcess
from services.trial_runner.ranks.rank_group import RankGroup
from services.trial_runner.ranks.rank_link import RankLinkServer
from services.trial_runner.ranks.startup_hook import HOOK_NAME, HOOK_RANK, HookFailed
from services.trial_runner.ranks.worker_line import split_by_worker
from services.trial_runner.start_error import EndedEarly, judge_start
from services.trial_runner.stop_signal import StopRequest
from services.trial_runner.trial_facts import TrialFacts
from services.trial_runner.watchdog.hang_rule import describe_place
from services.trial_runner.watchdog.stacks import dump_stacks
from services.trial_runner.watchdog.watchdog import Watchdog

# Limit for delivering what is queued for scheduler and gateway at the end. The slots stay occupied meanwhile, so it is
# short.
DRAIN_SECONDS = 5.0
# Time for the member that failed first to report its cause, if a rank here only noticed that the member had gone.
PEER_SECONDS = 1.5
# Limit for reading what the ranks printed last. A pipe ends only when the last process that holds it has ended.
LAST_OUTPUT_SECONDS = 1.0
# Grace of a preemption for which the experiment sets no `preemption_timeout`.
DEFAULT_GRACE_SECONDS = 3600.0

log = structlog.get_logger(__name__)
prepare(ExitReport)


class TrialRunner:
    """Runs one allocation on this machine; `run` may be called once.

    forked: a nursery for ranks that need no warm process.
    keeps_nursery: the nursery serves another allocation afterwards, unless this one was more than a short command.
    released: `run` sets it to the nursery if another allocation may use it.
    on_up: called once the ranks run.
    """

    def __init__(
        self,
        folder: SharedFolder,
        spec: runner_pb2.RunnerSpec,
        rank_forkserver: str,
        forked: NurseryProcess | None = None,
        *,
        keeps_nursery: bool = False,
    ) -> None:
        self.released: NurseryProcess | None = None
        self.on_up: Callable[[], None] = lambda: None
        self._keeps_nursery = keeps_nursery and forked is not None
        self._folder = folder
        self._spec = spec
        self._place = find_place(spec)
        config = load_config(spec)
        grace = float(config.get("preemption_timeout") or DEFAULT_GRACE_SECONDS)
        self._stop = StopRequest(folder, grace)
        self._delivery = Delivery(spec, self._place.agent_id, folder.state.spools)
        self._running = RunningReport(spec, self._place.agent_id, folder, self._delivery.reporter)
        self._gang = GangLinks(spec.token, self._place.node_rank, self._place.agent_ids)
        self._gang.on_failure = self._on_peer_failure
        self._watchdog = Watchdog(folder, self._place, hang_rule_of(config), self._gang, self._on_hang)
        self._relay = Relay(spec.trial, self._delivery.recorder, self._delivery.reporter, self._running.on_first_step)
        self._link = RankLinkServer(folder.ranks_path.absolute(), self._on_rank_message)
        self._delivery.on_trace = self._on_trace
        self._delivery.on_over = self._on_over
        self._lease = AttemptLease(
            spec, self._place.agent_id, on_over=self._on_over, on_stop=self._on_scheduler_stop, on_cut=self._on_cut
        )
        self._fusion = FusionRecords(spec, self._delivery.reporter, self._link.send)
        self._trial_facts = TrialFacts(spec, self._delivery.reporter, self._delivery.recorder, self._link.send)
        self._log_policy = LogPolicyMatcher(log_rules_of(config), self._delivery.recorder.warn)
        self._pump = LogPump(self._on_lines)
        note = self._delivery.recorder.note
        self._preparation = Preparation(spec, self._place, folder, rank_forkserver, self._gang, note, forked)
        self._last_report = LastReport(folder, self._relay, self._delivery.reporter, self._lease)
        self._output = Output(spec, self._place, folder, self._delivery.recorder)
        self._has_spoken = False
        self._speaking: asyncio.TimerHandle | None = None
        self._confinement = confinement.Confinement()
        self._rank_group: RankGroup | None = None
        self._peer: FailureRecord | None = None
        self._peer_told = asyncio.Event()
        self._hang: FailureRecord | None = None
        self._cut: FailureRecord | None = None
        self._ending_hung: asyncio.Task[None] | None = None
        self._hook_pid = 0
        # Set before a container, an interpreter of the user's or a startup hook may start.
        self._may_have_begun = False

    async def run(self) -> int:
        """Runs all steps and always writes an exit.json. Returns the process's exit code, 0 unless the runner itself is
        broken."""
        self._stop.listen()
        code = 0
        try:
            report = await self._live()
        except Exception as error:
            log.exception("the runner broke")
            code = 1
            message = f"the trial runner broke: {type(error).__name__}: {error}"
            is_fault = is_disk_fault(error)
            kind = ExitKind.AGENT_DISK if is_fault else ExitKind.RUNNER_LOST
            report = replace(self._report(kind, message), is_agent_at_fault=is_fault)
        report = self._complete(report)
        await self._last_report.leave(report, partial(self._close, report))
        self._stop.rest()
        return code

    def _complete(self, report: ExitReport) -> ExitReport:
        hits = tuple(self._log_policy.hits)
        return replace(report, ended_at=time.time(), log_hits=hits, has_not_begun=not self._has_begun)

    @property
    def _has_begun(self) -> bool:
        """Whether any process of the user's may have started."""
        return self._may_have_begun or (self._rank_group is not None and self._rank_group.has_begun)

    async def _live(self) -> ExitReport:
        """Runs the steps in order. A step that fails ends the run with its reason."""
        try:
            # 1. Prepare code, nursery and gang at the same time, or end here if a stop arrives.
            network = await self._prepare()
            # 2. Start the ranks, and report it. Ranks start only while the attempt holds its lease.
            if not self._lease.covers_start:
                await first_of(self._lease.hold(), self._stop.came.wait())
            start = await self._settle(network)
            assert self._preparation.nursery is not None
            rank_group = RankGroup(
                self._place,
                self._preparation.nursery,
                self._pump,
                self._gang.tell_failure,
                is_cut=lambda: self._lease.has_killed,
            )
            self._rank_group = rank_group
            await self._start(rank_group, network, start)
        except EndedEarly as ended:
            return ended.report
        except (RendezvousFailed, HookFailed, GanglineError, OSError) as error:
            return await self._judge_start(error)
        # 3. Watch until every rank has ended.
        await rank_group.wait_ended()
        self._hush()
        if self._ending_hung is not None:
            await self._ending_hung
        # 4. Wait for the other members, release everything that is left, and judge.
        await self._part(rank_group)
        return await self._judge(rank_group)

    async def _prepare(self) -> Network:
        """Returns the chosen network. Raises EndedEarly if a stop came first."""
        self._confinement = confinement.load(self._folder, self._spec.owner, self._spec.owner_id, self._place.agent_id)
        await self._confinement.open(self._folder, self._spec)
        self._delivery.reporter.find_fault = lambda found: self._confinement.find_theft(self._spec, found)
        files = AttemptFiles(self._spec, self._place, self._folder, self._watchdog.paths, self._confinement)
        self._preparation.container = make_container(files, self._delivery.recorder.note)
        self._preparation.on_container = self._on_container
        await self._link.start()
        network = await first_of(self._preparation.run(), self._stop.came.wait())
        if not isinstance(network, Network):
            raise EndedEarly(self._stopped_early())
        return network

    async def _settle(self, network: Network) -> RankStart:
        """Returns what the ranks start with, after the startup hook. Raises EndedEarly, also if a stop came before."""
        if self._stop.stop is not None:
            raise EndedEarly(self._stopped_early())
        nursery = self._preparation.nursery
        assert nursery is not None
        self._lease.guard(nursery)
        # What comes before the ranks, such as an interpreter on a slow disk, may take longer than the first lease.
        self._lease.start_soon(self._pids)
        if self._place.is_head:
            for sentence in (*describe_start(self._spec), *self._log_policy.left_out):
                self._delivery.recorder.warn(sentence)
        paths, container = self._watchdog.paths, self._preparation.container
        setup = RankSetup(
            self._spec, self._place, self._folder, self._link.path, paths, self._confinement, self._on_begin, container
        )
        preparing = setup.prepare(network, nursery, self._pump, self._on_hook)
        start = await first_of(preparing, self._stop.came.wait(), self._peer_told.wait())
        if self._stop.stop is not None:
            raise EndedEarly(self._stopped_early())
        if self._peer is not None:
            raise EndedEarly(self._report(ExitKind.PEER_FAILED, f"ended because {describe_failure(self._peer)}"))
        assert isinstance(start, RankStart)
        return start

    def _on_begin(self) -> None:
        self._may_have_begun = True

    def _on_hook(self, pid: int) -> None:
        """Reports that the attempt runs, and holds its lease, because the startup hook may take as long as it likes."""
        self._hook_pid = pid
        self._folder.write_rank_pids([pid])
        self._begin_early(f"{HOOK_NAME} runs on {self._place.agent_id}")

    def _on_container(self) -> None:
        """Does the same for a container, whose image may have to be fetched first."""
        assert self._preparation.container is not None
        self._on_begin()
        self._begin_early(f"a container of {self._preparation.container.image} starts on {self._place.agent_id}")

    def _begin_early(self, sentence: str) -> None:
        self._running.note_up(self._preparation.rendezvous_at, time.time())
        self._delivery.recorder.note(sentence)
        self._speak()

    async def _start(self, rank_group: RankGroup, network: Network, start: RankStart) -> None:
        self._output.begin(start.environments[self._place.first_rank], self._confinement)
        up_at = await rank_group.start(start.environments, start.directory, start.num_threads, start.program)
        self.on_up()
        self._folder.write_rank_pids(rank_group.pids)
        self._watchdog.find_pid = rank_group.nursery.pid_of
        self._watchdog.start(lambda: rank_group.living)
        self._stop.on_order = self._on_stop
        if self._stop.stop is not None:
            self._on_stop()
        if self._peer is not None:
            rank_group.on_peer_failure()
        self._running.note_up(self._preparation.rendezvous_at, up_at)
        if self._has_spoken:
            self._running.send()
        self._lease.start_soon(self._pids)
        self._speaking = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._speak)
        log.info("the ranks run", ranks=list(self._place.ranks), store=f"{network.store_address}:{network.store_port}")
        self._delivery.adopt_orphans()
        self._delivery.serve_task(self._folder, self._confinement.uid, self._confinement.user)

    async def _part(self, rank_group: RankGroup) -> None:
        """Ends what the ranks left behind, and keeps their output. Node rank 0 first waits until all other members are
        done, because it hosts the store."""
        is_success = all(end.is_success for end in rank_group.ends())
        if is_success:
            self._gang.tell_done()
            if self._place.num_nodes > 1:
                await first_of(self._gang.wait_done(), self._peer_told.wait(), self._stop.came.wait())
        nursery = self._preparation.nursery
        assert nursery is not None
        if self._keeps_nursery and self._is_short(rank_group):
            self.released = await nursery.release()
        if self.released is None:
            await nursery.close()
        await self._pump.drain(LAST_OUTPUT_SECONDS)
        await rank_group.close()
        rank_group.tell(time.time())
        if text := rank_group.describe_end(was_ordered=self._stop.stop is not None):
            self._delivery.recorder.note(text)
        # Nothing of the ranks lives any more, so their files change no longer.
        on_copy = partial(self._on_copy, rank_group)
        await self._output.settle(self._stop, on_copy, has_results=self._relay.has_results, is_success=is_success)

    async def _on_copy(self, rank_group: RankGroup) -> None:
        """Renews the lease during a long copy, and notes how the ranks ended for the agent of a runner that dies."""
        self._speak()
        await self._last_report.note_for_copy(self._complete(await self._judge(rank_group)))

    def _is_short(self, rank_group: RankGroup) -> bool:
        """Whether the command ended by itself before this runner had anything to report."""
        return not self._has_spoken and self._stop.stop is None and not rank_group.lost

    async def _judge_start(self, error: Exception) -> ExitReport:
        """Returns the report of a start that failed, which ends the other members too. Under an order to end, the order
        is the cause: this runner, its agent or the end of the lease may have killed what has failed."""
        self._note_cut()
        if self._stop.stop is not None:
            return self._stopped_early()
        if isinstance(error, HookFailed):
            await self._pump.drain(LAST_OUTPUT_SECONDS)
        report = judge_start(error, self._place.agent_id, self._pump.last_lines(HOOK_RANK), time.time())
        if not isinstance(error, RendezvousFailed):
            self._gang.tell_failure(FailureRecord(report.kind, report.message, None, report.agent_id, report.failed_at))
        return report

    async def _judge(self, rank_group: RankGroup) -> ExitReport:
        ends = rank_group.ends()
        cause = find_cause(ends)
        self._note_cut()
        if self._place.num_nodes > 1 and self._peer is None and cause is not None and cause.is_consequence:
            with suppress(TimeoutError):
                async with asyncio.timeout(PEER_SECONDS):
                    await self._peer_told.wait()
        now = time.time()
        stop = self._stop.stop
        if stop is not None:
            stop = replace(stop, is_overdue=now >= self._stop.deadline_at)
        around = OutcomeContext(
            self._place.agent_id,
            self._place.num_nodes,
            now,
            self._peer,
            stop,
            rank_group.lost,
            self._hang,
            self._cut,
            partial(find_disk_fault, folder=self._folder.state.path),
            self._confinement.limits,
        )
        report = judge(ends, around)
        if report.rank is None:
            return report
        batches = self._watchdog.batches_of(report.rank)
        if batches is None and self._place.is_head and not self._relay.has_reported:
            # The chief is here, so no process of the gang has reported a batch: it failed where it began.
            batches = self._spec.latest_checkpoint.batches_completed
        return replace(report, batches_completed=batches, signature=signature_of(report))

    async def _close(self, report: ExitReport) -> list[runner_pb2.TrialReport]:
        """Closes all parts. Returns the reports that no scheduler took."""
        if self._has_spoken:
            await self._last_report.note(report)
        if report.kind is not ExitKind.COMPLETED:
            is_orderly = report.kind in (ExitKind.PREEMPTED, ExitKind.KILLED)
            level = LogLevel.INFO if is_orderly else LogLevel.ERROR
            self._delivery.recorder.note(f"{report.kind.value}: {report.message}", level)
        if self._running.is_due:
            self._running.send()
        self._lease.end_ranks()
        await self._watchdog.close()
        await self._gang.close()
        if self._preparation.nursery is not None and not self._preparation.nursery.is_gone:
            await self._preparation.nursery.close()
        if self._preparation.container is not None:
            await self._preparation.container.close()
        self._confinement.release()
        await self._fusion.close()
        await self._trial_facts.close()
        await self._link.close()
        self._relay.tell_rest()
        agents = exit_file.load_stop_deadline(self._folder)
        seconds = min(DRAIN_SECONDS, max(0.2, agents - time.time() - 1.0)) if agents else DRAIN_SECONDS
        return await self._delivery.close(seconds)

    def _stopped_early(self) -> ExitReport:
        stop = self._stop.stop
        assert stop is not None
        if self._cut is not None:
            return self._report(ExitKind.NETWORK, self._cut.message)
        return self._report(stop.kind, f"stopped before its ranks started: {stop.reason}")

    def _report(self, kind: ExitKind, message: str) -> ExitReport:
        return ExitReport(self._place.agent_id, kind, message, failed_at=time.time())

    def _on_stop(self) -> None:
        """Asks preempted ranks to stop after a checkpoint. The rank group kills those that are still alive at
        the deadline."""
        stop = self._stop.stop
        assert stop is not None
        assert self._rank_group is not None
        if stop.kind is ExitKind.PREEMPTED:
            self._link.preempt(stop.reason, self._stop.grace_seconds)
        self._rank_group.stop(self._stop.deadline_at, self._link.connected)

    def _on_over(self, reason: str) -> None:
        """Kills the ranks: another attempt may hold the trial, so nothing that these ranks do counts any more."""
        log.warning("this attempt is over", reason=reason)
        self._end_as_cut(f"this attempt is over: {reason}")

    def _on_scheduler_stop(self, order: runner_pb2.AttemptStop) -> None:
        """Takes the stop order that arrives with every renewal. The agent has passed the order on as well, unless it is
        away."""
        kind = enum_member(ExitKind, order.kind) or ExitKind.KILLED
        if self._stop.stop is None or self._stop.stop.kind is not kind:
            self._stop.ask(kind, order.reason, order.grace_seconds)

    def _on_cut(self, message: str) -> None:
        """Kills every rank of this machine, because the next attempt may start on another one."""
        self._delivery.recorder.note(message, LogLevel.ERROR)
        self._end_as_cut(message)

    def _note_cut(self) -> None:
        """Notes that the lease is over if its thread has killed before the event loop has noticed."""
        if self._lease.has_killed and self._cut is None:
            self._on_cut(self._lease.cut_message)

    def _end_as_cut(self, message: str) -> None:
        self._cut = FailureRecord(ExitKind.NETWORK, message, agent_id=self._place.agent_id, failed_at=time.time())
        self._stop.ask(ExitKind.KILLED, message)

    def _on_peer_failure(self, failure: FailureRecord) -> None:
        self._peer = first_cause(self._peer, failure)
        self._peer_told.set()
        if self._rank_group is not None:
            self._rank_group.on_peer_failure()

    def _on_lines(self, rank: int, stream: str, lines: Sequence[str]) -> None:
        # The log has ranks only, so the startup hook's lines are those of the machine's first rank.
        rank = self._place.first_rank if rank == HOOK_RANK else rank
        for worker, part in split_by_worker(lines, rank) if self._place.runs_once else [(rank, lines)]:
            self._delivery.recorder.record_lines(worker, stream, part)
            self._log_policy.search(worker, part)

    def _on_hang(self, failure: FailureRecord) -> None:
        if self._rank_group is not None and self._ending_hung is None:
            self._ending_hung = asyncio.create_task(self._end_hung(failure, self._rank_group))

    async def _end_hung(self, failure: FailureRecord, rank_group: RankGroup) -> None:
        """Records what the ranks of this machine are doing, and then ends them. Every member does this."""
        recorder = self._delivery.recorder
        recorder.note(f"the gang hangs: {describe_failure(failure)}", LogLevel.ERROR)
        assert self._preparation.nursery is not None
        files = self._watchdog.living_files(rank_group.living)
        nursery = self._preparation.nursery
        stacks_by_rank = await dump_stacks(files, descendants(nursery.pid), nursery.pid_of)
        for rank, stacks in stacks_by_rank.items():
            recorder.record_stacks(rank, describe_place(files[rank].read()), stacks.problem, stacks.lines)
        if failure.rank not in self._place.slot_ranks:
            self._on_peer_failure(failure)
            return
        lines = stacks_by_rank[failure.rank].main_thread[-LAST_LINES:] if failure.rank in stacks_by_rank else ()
        self._hang = replace(failure, details="\n".join(lines))
        rank_group.on_peer_failure()

    def _speak(self) -> None:
        """Serves metrics, reports that the ranks run, and renews the lease. Called when the ranks outlive the first
        moment or send a message. A command that has ended by then needs none of this: its exit reports everything."""
        if self._has_spoken:
            return
        self._has_spoken = True
        self._running.serve_metrics()
        self._delivery.reporter.open()
        self._lease.start(self._pids)

    def _pids(self) -> list[int]:
        return [pid for pid in (self._rank_group.living_pids if self._rank_group else [self._hook_pid]) if pid]

    def _hush(self) -> None:
        """Cancels the first report if it was not sent yet: the ranks have ended, so the exit reports everything."""
        if self._speaking is not None:
            self._speaking.cancel()

    def _on_rank_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        if self._rank_group is not None and self._running.is_up:
            self._speak()
        self._relay.on_message(rank, message)
        self._fusion.on_message(rank, message)
        self._trial_facts.on_message(rank, message)
        self._output.on_message(message)
        if self._rank_group is not None:
            self._rank_group.on_message(rank, message)

    def _on_trace(self, batches: int) -> None:
        self._link.send(CHIEF, rank_pb2.RunnerMessage(trace=rank_pb2.TraceRank(batches=batches)))
