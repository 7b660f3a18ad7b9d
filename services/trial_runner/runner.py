"""The lifecycle of one trial runner: prepare, rendezvous, start the ranks, watch them, report how they ended.

Owns the order of the steps and the judgement of the end; each step is a module beside this one. What happens to the
attempt meanwhile is in `attempt_events.py`, which the steps ask. `program.py` runs it on the parts of `parts.py`, with
the allocation's folder, which holds spec.json and will hold exit.json; see exit_file.py. The runner continues without
scheduler and gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import structlog

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind, LogLevel
from gangline.errors import GanglineError
from gangline.v1 import runner_pb2
from services.common.concurrency import first_of
from services.common.disk_fault import find_disk_fault, is_disk_fault
from services.trial_runner.exit_file import load_stop_deadline
from services.trial_runner.gang.gang_plan import Network, describe_start
from services.trial_runner.gang.outcome import (
    FailureRecord,
    OutcomeContext,
    describe_failure,
    find_cause,
    judge,
    signature_of,
)
from services.trial_runner.gang.rendezvous import RendezvousFailed
from services.trial_runner.parts import AttemptParts
from services.trial_runner.rank_setup import RankSetup, RankStart
from services.trial_runner.ranks.nursery_client import NurseryProcess
from services.trial_runner.ranks.rank_group import RankGroup
from services.trial_runner.ranks.startup_hook import HOOK_NAME, HOOK_RANK, HookFailed
from services.trial_runner.start_error import EndedEarly, judge_start

# Limit for delivering what is queued for scheduler and gateway at the end. The slots stay occupied meanwhile, so it is
# short.
DRAIN_SECONDS = 5.0
# Time for the member that failed first to report its cause, if a rank here only noticed that the member had gone.
PEER_SECONDS = 1.5
# Limit for reading what the ranks printed last. A pipe ends only when the last process that holds it has ended.
LAST_OUTPUT_SECONDS = 1.0

log = structlog.get_logger(__name__)


class TrialRunner:
    """Runs one allocation on this machine; `run` may be called once.

    keeps_nursery: the nursery serves another allocation afterwards, unless this one was more than a short command.
    released: `run` sets it to the nursery if another allocation may use it.
    on_up: called once the ranks run.
    """

    def __init__(self, parts: AttemptParts, *, keeps_nursery: bool, on_up: Callable[[], None]) -> None:
        self.released: NurseryProcess | None = None
        self._parts = parts
        self._events = parts.events
        self._place = parts.place
        self._keeps_nursery = keeps_nursery
        self._on_up = on_up

    async def run(self) -> int:
        """Runs all steps and always writes an exit.json. Returns the process's exit code, 0 unless the runner itself is
        broken."""
        self._events.stop.listen()
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
        await self._parts.last_report.leave(report, partial(self._close, report))
        self._events.stop.rest()
        return code

    async def _live(self) -> ExitReport:
        """Runs the steps in order. A step that fails ends the run with its reason."""
        try:
            # 1. Prepare code, nursery and gang at the same time, or end here if a stop arrives.
            network = await self._prepare()
            # 2. Start the ranks, and report it. Ranks start only while the attempt holds its lease.
            if not self._parts.lease.covers_start:
                await first_of(self._parts.lease.hold(), self._events.stop.came.wait())
            start = await self._settle(network)
            rank_group = await self._start(start)
        except EndedEarly as ended:
            return ended.report
        except (RendezvousFailed, HookFailed, GanglineError, OSError) as error:
            return await self._judge_start(error)
        # 3. Watch until every rank has ended.
        await rank_group.wait_ended()
        self._parts.announcement.cancel()
        await self._parts.hang_end.wait()
        # 4. Wait for the other members, release everything that is left, and judge.
        await self._part(rank_group)
        return await self._judge(rank_group)

    async def _prepare(self) -> Network:
        """Returns the chosen network. Raises EndedEarly if a stop came first."""
        spec, confinement = self._parts.spec, self._parts.confinement
        confinement.load(self._parts.folder, spec.owner, spec.owner_id)
        await confinement.open(self._parts.folder, spec)
        await self._parts.messages.start()
        preparing = self._parts.preparation.run(self._on_container)
        network = await first_of(preparing, self._events.stop.came.wait())
        if not isinstance(network, Network):
            raise EndedEarly(self._stopped_early())
        return network

    async def _settle(self, network: Network) -> RankStart:
        """Returns what the ranks start with, after the startup hook. Raises EndedEarly, also if a stop came before."""
        events, preparation = self._events, self._parts.preparation
        if events.stop.stop is not None:
            raise EndedEarly(self._stopped_early())
        nursery = preparation.nursery
        assert nursery is not None
        self._parts.lease.guard(nursery)
        # What comes before the ranks, such as an interpreter on a slow disk, may take longer than the first lease.
        self._parts.lease.start_soon(events.pids)
        if self._place.is_head:
            for sentence in (*describe_start(self._parts.spec), *self._parts.log_policy.left_out):
                self._parts.recorder.warn(sentence)
        setup = RankSetup(
            self._parts.spec,
            self._place,
            self._parts.folder,
            self._parts.messages.link.path,
            self._parts.beats.paths,
            self._parts.confinement,
            events.on_begin,
            preparation.container,
        )
        preparing = setup.prepare(network, nursery, self._parts.pump, self._on_hook)
        start = await first_of(preparing, events.stop.came.wait(), events.peer_told.wait())
        if events.stop.stop is not None:
            raise EndedEarly(self._stopped_early())
        if events.peer is not None:
            raise EndedEarly(self._report(ExitKind.PEER_FAILED, f"ended because {describe_failure(events.peer)}"))
        assert isinstance(start, RankStart)
        return start

    def _on_hook(self, pid: int) -> None:
        """Reports that the attempt runs, and holds its lease, because the startup hook may take as long as it likes."""
        self._events.on_hook(pid)
        self._parts.folder.write_rank_pids([pid])
        rendezvous_at = self._parts.preparation.rendezvous_at
        self._parts.announcement.make_early(rendezvous_at, f"{HOOK_NAME} runs on {self._place.agent_id}")

    def _on_container(self, image: str) -> None:
        """Does the same for a container, whose image may have to be fetched first."""
        self._events.on_begin()
        rendezvous_at = self._parts.preparation.rendezvous_at
        sentence = f"a container of {image} starts on {self._place.agent_id}"
        self._parts.announcement.make_early(rendezvous_at, sentence)

    async def _start(self, start: RankStart) -> RankGroup:
        """Returns the ranks once they run."""
        parts, nursery = self._parts, self._parts.preparation.nursery
        assert nursery is not None
        rank_group = RankGroup(
            self._place, nursery, parts.pump, parts.gang.tell_failure, is_cut=lambda: parts.lease.has_killed
        )
        self._events.on_ranks_start(rank_group)
        parts.output.begin(start.environments[self._place.first_rank], parts.confinement)
        up_at = await rank_group.start(start.environments, start.directory, start.num_threads, start.program)
        self._on_up()
        parts.folder.write_rank_pids(rank_group.pids)
        parts.watchdog.start(lambda: rank_group.living, nursery.pid_of)
        self._events.on_ranks_up()
        parts.announcement.make_soon(parts.preparation.rendezvous_at, up_at)
        store = f"{start.network.store_address}:{start.network.store_port}"
        log.info("the ranks run", ranks=list(self._place.ranks), store=store)
        parts.spool_folder.adopt_orphans()
        parts.delivery.serve_task(parts.folder, parts.confinement.uid, parts.confinement.user)
        return rank_group

    async def _part(self, rank_group: RankGroup) -> None:
        """Ends what the ranks left behind, and keeps their output. Node rank 0 first waits until all other members are
        done, because it hosts the store."""
        parts, events = self._parts, self._events
        is_success = all(end.is_success for end in rank_group.ends())
        if is_success:
            parts.gang.tell_done()
            if self._place.num_nodes > 1:
                await first_of(parts.gang.wait_done(), events.peer_told.wait(), events.stop.came.wait())
        if self._keeps_nursery and self._is_short(rank_group):
            self.released = await rank_group.nursery.release()
        if self.released is None:
            await rank_group.nursery.close()
        await parts.pump.drain(LAST_OUTPUT_SECONDS)
        await rank_group.close()
        rank_group.tell(time.time())
        if text := rank_group.describe_end(was_ordered=events.stop.stop is not None):
            parts.recorder.note(text)
        # Nothing of the ranks lives any more, so their files change no longer.
        has_results = parts.messages.relay.has_results
        on_copy = partial(self._on_copy, rank_group)
        await parts.output.settle(events.stop, on_copy, has_results=has_results, is_success=is_success)

    async def _on_copy(self, rank_group: RankGroup) -> None:
        """Renews the lease during a long copy, and notes how the ranks ended for the agent of a runner that dies."""
        self._parts.announcement.make()
        await self._parts.last_report.note_for_copy(self._complete(await self._judge(rank_group)))

    def _is_short(self, rank_group: RankGroup) -> bool:
        """Whether the command ended by itself before this runner had anything to report."""
        return not self._parts.announcement.is_made and self._events.stop.stop is None and not rank_group.lost

    async def _judge_start(self, error: Exception) -> ExitReport:
        """Returns the report of a start that failed, which ends the other members too. Under an order to end, the order
        is the cause: this runner, its agent or the end of the lease may have killed what has failed."""
        self._note_cut()
        if self._events.stop.stop is not None:
            return self._stopped_early()
        if isinstance(error, HookFailed):
            await self._parts.pump.drain(LAST_OUTPUT_SECONDS)
        report = judge_start(error, self._place.agent_id, self._parts.pump.last_lines(HOOK_RANK), time.time())
        if not isinstance(error, RendezvousFailed):
            failure = FailureRecord(report.kind, report.message, None, report.agent_id, report.failed_at)
            self._parts.gang.tell_failure(failure)
        return report

    async def _judge(self, rank_group: RankGroup) -> ExitReport:
        events = self._events
        ends = rank_group.ends()
        cause = find_cause(ends)
        self._note_cut()
        if self._place.num_nodes > 1 and events.peer is None and cause is not None and cause.is_consequence:
            with suppress(TimeoutError):
                async with asyncio.timeout(PEER_SECONDS):
                    await events.peer_told.wait()
        now = time.time()
        stop = events.stop.stop
        if stop is not None:
            stop = replace(stop, is_overdue=now >= events.stop.deadline_at)
        around = OutcomeContext(
            self._place.agent_id,
            self._place.num_nodes,
            now,
            events.peer,
            stop,
            rank_group.lost,
            events.hang,
            events.cut,
            partial(find_disk_fault, folder=self._parts.folder.state.path),
            self._parts.confinement.limits,
        )
        report = judge(ends, around)
        if report.rank is None:
            return report
        batches = self._parts.beats.batches_of(report.rank)
        if batches is None and self._place.is_head and not self._parts.messages.relay.has_reported:
            # The chief is here, so no process of the gang has reported a batch: it failed where it began.
            batches = self._parts.spec.latest_checkpoint.batches_completed
        return replace(report, batches_completed=batches, signature=signature_of(report))

    async def _close(self, report: ExitReport) -> list[runner_pb2.TrialReport]:
        """Closes all parts. Returns the reports that no scheduler took."""
        parts = self._parts
        if parts.announcement.is_made:
            await parts.last_report.note(report)
        if report.kind is not ExitKind.COMPLETED:
            is_orderly = report.kind in (ExitKind.PREEMPTED, ExitKind.KILLED)
            level = LogLevel.INFO if is_orderly else LogLevel.ERROR
            parts.recorder.note(f"{report.kind.value}: {report.message}", level)
        if parts.running.is_due:
            parts.running.send()
        parts.lease.end_ranks()
        await parts.watchdog.close()
        await parts.gang.close()
        await parts.preparation.close()
        parts.confinement.release()
        await parts.messages.close()
        agents = load_stop_deadline(parts.folder)
        seconds = min(DRAIN_SECONDS, max(0.2, agents - time.time() - 1.0)) if agents else DRAIN_SECONDS
        return await parts.delivery.close(seconds)

    def _note_cut(self) -> None:
        """Notes that the lease is over if its thread has killed before the event loop has noticed."""
        if self._parts.lease.has_killed and self._events.cut is None:
            self._events.on_cut(self._parts.lease.cut_message)

    def _stopped_early(self) -> ExitReport:
        stop, cut = self._events.stop.stop, self._events.cut
        assert stop is not None
        if cut is not None:
            return self._report(ExitKind.NETWORK, cut.message)
        return self._report(stop.kind, f"stopped before its ranks started: {stop.reason}")

    def _report(self, kind: ExitKind, message: str) -> ExitReport:
        return ExitReport(self._place.agent_id, kind, message, failed_at=time.time())

    def _complete(self, report: ExitReport) -> ExitReport:
        hits = tuple(self._parts.log_policy.hits)
        return replace(report, ended_at=time.time(), log_hits=hits, has_not_begun=not self._events.has_begun)
