"""Receives the reports of agents and runners and turns them into commits.

Owns the parts of reports that are kept in memory only: the numbers of the reports seen, the newest progress of each
trial and when it was last written. After a fail-over this starts empty, which is safe: every report may be applied
twice.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import fields, replace

import structlog

from gangline.config.strategy_choice import parse_choice
from gangline.domain.allocation import Allocation, ExitReport, Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.fusion import FusionRecord
from gangline.domain.history import MetricsPoint
from gangline.domain.id import parse_allocation_id
from gangline.domain.metric_value import check_metadata
from gangline.domain.resource import Agent
from gangline.domain.state import CheckpointState
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.printable import to_line
from gangline.protocol import wire
from gangline.v1 import runner_pb2
from services.common.metrics_address import runner_metrics_address
from services.scheduler.agents.agent_session import AgentClock, AgentSession, Sessions
from services.scheduler.agents.report_check import Screening
from services.scheduler.state import metrics
from services.scheduler.state.estimate import Progress
from services.scheduler.state.records import Records, StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.state.state_store import Store, Transition
from services.scheduler.transition.checkpoint import abandoned, delete_checkpoints
from services.scheduler.transition.exit import member_exited
from services.scheduler.transition.fence import fenced, is_superseded, live, why_over
from services.scheduler.transition.fusion import fusion_doubted, fusion_found
from services.scheduler.transition.place import accepted, came_up, metrics_found
from services.scheduler.transition.report import (
    checkpointed,
    chosen,
    described,
    find_taken,
    passes_length,
    progressed,
    validated,
    waiting,
)

_log = structlog.get_logger(__name__)

# Least time between two writes of a trial's progress. The record only serves later readers; newer progress is in memory
# and arrives with every report.
PROGRESS_SECONDS = 30.0


class Intake:
    """progress_by_trial: the progress of running trials. told_exits: ends that runners reported while their agents were
    connected, by allocation and node rank; one counts where the agent is lost before it reports the same end.
    """

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        rules: Rules,
        storage_url: str,
        has_gateway_since: Callable[[float], bool],
    ) -> None:
        """storage_url: the cluster's storage. has_gateway_since: whether a gateway is registered that was there at this
        time already."""
        self.progress_by_trial: dict[str, Progress] = {}
        self.told_exits: dict[tuple[str, int], ExitReport] = {}
        self._store = store
        self._sessions = sessions
        self._rules = rules
        self._has_gateway_since = has_gateway_since
        self._screening = Screening(storage_url)
        # By allocation: the timeline whose phases are already in the metrics, so that each phase is observed once.
        self._observed: dict[str, Timeline] = {}
        self._written_at: dict[str, float] = {}
        self._newest_sequence: dict[tuple[str, int], int] = {}

    async def accept(self, session: AgentSession, allocation_id: str, accepted_at: float) -> None:
        """Records that an agent has accepted. The last agent of a gang starts the wait for its runners."""
        accepted_at = self._screening.time(allocation_id, "accepted", accepted_at or time.time(), time.time())
        session.accepted_at_by_id.setdefault(allocation_id, accepted_at)
        before = self._store.state.find(Allocation, allocation_id)
        if before is None or before.timeline.accepted_at:
            return
        times = [self._sessions.accepted_at(member.agent_id, allocation_id) for member in before.members]
        if not all(times):
            return
        self._observed.setdefault(allocation_id, before.timeline)
        await self._store.commit(lambda records: accepted(records, allocation_id, max(times), self._rules, time.time()))
        self._observe_start(allocation_id)

    async def metrics_served(self, allocation_id: str, agent_id: str, address: str) -> None:
        """Records where an agent has seen its runner serve metrics; empty where it has not yet."""
        address = runner_metrics_address(self._store.state.find(Agent, agent_id), address)
        if address:
            await self._store.commit(lambda records: metrics_found(records, allocation_id, agent_id, address))

    async def exit(
        self, allocation_id: str, report: ExitReport, still_holds: Callable[[], bool] = lambda: True
    ) -> None:
        """Records the end of a member. Returns once it is written; without its texts where the record would be too
        large.

        still_holds: evaluated again in the transition, after all earlier writes.
        """
        report = self._screening.exit(allocation_id, report, time.time())
        await self._write_progress(parse_allocation_id(allocation_id)[0])
        try:
            await self._write_exit(allocation_id, report, still_holds)
        except GanglineError as error:
            if error.kind is not ErrorKind.INVALID:
                raise
            _log.warning("an exit is written without its texts", allocation_id=allocation_id, reason=error.message)
            bare = replace(report, message=report.message[:200], last_lines=(), log_hits=())
            await self._write_exit(allocation_id, bare, still_holds)

    async def _write_exit(self, allocation_id: str, report: ExitReport, still_holds: Callable[[], bool]) -> None:
        def transition(records: Records) -> StateChange:
            allocation = records.find(Allocation, allocation_id)
            if allocation is None or not still_holds():
                return StateChange()
            had_gateway = self._has_gateway_since(allocation.created_at)
            return member_exited(records, allocation_id, report, self._rules, time.time(), had_gateway=had_gateway)

        change = await self._store.commit(transition)
        if not change:
            return
        metrics.EXITS.labels(report.kind.lower()).inc()
        _log.info(
            "member ended",
            allocation_id=allocation_id,
            agent_id=report.agent_id,
            kind=str(report.kind),
            rank=report.rank,
            message=report.message,
        )

    async def report(self, allocation_id: str, node_rank: int, report: runner_pb2.TrialReport) -> str:
        """Takes one report of a runner. A report that was seen before, or of a superseded attempt, changes nothing.

        Returns why the attempt is over for this member; "" while it is live. Raises GanglineError `id.allocation`.
        """
        key = (allocation_id, node_rank)
        if report.sequence > self._newest_sequence.get(key, 0):
            await self._take(allocation_id, node_rank, report)
            # The number is stored after the commit, because a report whose commit failed has to be taken again.
            self._newest_sequence[key] = max(report.sequence, self._newest_sequence.get(key, 0))
        reason = why_over(self._store.state, allocation_id, node_rank)
        if reason:
            metrics.FENCED_REPORTS.inc()
        return reason

    async def _take(self, allocation_id: str, node_rank: int, report: runner_pb2.TrialReport) -> None:
        report = self._screening.report(allocation_id, report, time.time())
        match report.WhichOneof("report"):
            case "running":
                await self._came_up(allocation_id, report.running)
            case "progress":
                await self._progressed(allocation_id, report.progress)
            case "metrics":
                units = report.units if report.HasField("units") else None
                await self._validated(allocation_id, wire.from_proto(MetricsPoint, report.metrics), units)
            case "checkpoint":
                await self._checkpointed(allocation_id, node_rank, wire.from_proto(Checkpoint, report.checkpoint))
            case "waiting":
                text, now = to_line(report.waiting.text), time.time()
                await self._store.commit(
                    live(
                        allocation_id, node_rank, lambda records: waiting(records, allocation_id, node_rank, text, now)
                    )
                )
            case "metadata":
                check_metadata(report.metadata)
                trial_id = parse_allocation_id(allocation_id)[0]
                await self._commit(allocation_id, lambda records: described(records, trial_id, report.metadata))
            case "strategy_choice":
                parse_choice(report.strategy_choice)
                trial_id = parse_allocation_id(allocation_id)[0]
                # Live, because a late report would hide that its choice has run out of memory.
                await self._store.commit(
                    live(allocation_id, node_rank, lambda records: chosen(records, trial_id, report.strategy_choice))
                )
            case "fusion":
                record, trial_id = wire.from_proto(FusionRecord, report.fusion), parse_allocation_id(allocation_id)[0]
                await self._store.commit(
                    live(allocation_id, node_rank, lambda records: fusion_found(records, record, trial_id, time.time()))
                )
            case "forgotten_fusion":
                trial_id = parse_allocation_id(allocation_id)[0]
                await self._store.commit(
                    live(
                        allocation_id,
                        node_rank,
                        lambda records: fusion_doubted(records, report.forgotten_fusion, trial_id),
                    )
                )

    async def _commit(self, allocation_id: str, transition: Transition) -> None:
        await self._store.commit(fenced(allocation_id, transition))

    def on_committed(self, change: StateChange) -> None:
        """Drops the state of ended allocations."""
        for record_type, allocation_id in change.deletes:
            if record_type is Allocation:
                trial_id = parse_allocation_id(str(allocation_id))[0]
                self._observe_rest(str(allocation_id))
                self.progress_by_trial.pop(trial_id, None)
                self._written_at.pop(trial_id, None)
                self._screening.forget(str(allocation_id))
                self._sessions.unbegun.forget(str(allocation_id))
                for key in [key for key in self._newest_sequence if key[0] == allocation_id]:
                    del self._newest_sequence[key]
                for key in [key for key in self.told_exits if key[0] == allocation_id]:
                    del self.told_exits[key]

    async def _came_up(self, allocation_id: str, report: runner_pb2.RunningReport) -> None:
        before = self._store.state.find(Allocation, allocation_id)
        if before is not None:
            self._observed.setdefault(allocation_id, before.timeline)
        timeline = wire.from_proto(Timeline, report.timeline)
        await self._store.commit(lambda records: came_up(records, allocation_id, timeline, time.time()))
        self._observe_start(allocation_id)

    async def _progressed(self, allocation_id: str, report: runner_pb2.ProgressReport) -> None:
        allocation = self._store.state.find(Allocation, allocation_id)
        if allocation is None:
            return
        now = time.time()
        self.progress_by_trial[allocation.trial_id] = Progress(
            report.batches_completed, report.batches_total, report.seconds_per_batch, now
        )
        is_due = now - self._written_at.get(allocation.trial_id, 0.0) >= PROGRESS_SECONDS
        if is_due or self._passes_length(allocation.trial_id, report.batches_completed):
            self._written_at[allocation.trial_id] = now
            await self._write_progress(allocation.trial_id)

    def _passes_length(self, trial_id: str, batches: int) -> bool:
        """Whether the trial is too far past its length, which is not on its record yet."""
        trial = self._store.state.find(Trial, trial_id)
        experiment = self._store.state.find(Experiment, trial.experiment_id) if trial is not None else None
        if trial is None or experiment is None or trial.warning or trial.closing is not None:
            return False
        return passes_length(settled_of(experiment.config_json).searcher, batches)

    async def _write_progress(self, trial_id: str) -> None:
        progress = self.progress_by_trial.get(trial_id)
        if progress is not None:
            await self._store.commit(lambda records: progressed(records, trial_id, progress, self._rules, time.time()))

    async def _validated(self, allocation_id: str, validation: MetricsPoint, units: float | None) -> None:
        trial_id = parse_allocation_id(allocation_id)[0]
        await self._commit(
            allocation_id,
            lambda records: validated(records, trial_id, validation, units=units, rules=self._rules, now=time.time()),
        )

    async def _checkpointed(self, allocation_id: str, node_rank: int, checkpoint: Checkpoint) -> None:
        """Records a checkpoint of the runner's own trial, whatever trial the report names. Raises GanglineError as
        Screening does, and `checkpoint.taken`.
        """
        trial_id = parse_allocation_id(allocation_id)[0]
        trial = self._store.state.find(Trial, trial_id)
        if trial is None:
            return
        self._screening.check_checkpoint(checkpoint)
        if checkpoint.state is CheckpointState.DELETING:
            await self._unneeded(allocation_id, trial, checkpoint.id)
            return
        created_at = self._clock_of(allocation_id, node_rank).to_ours(checkpoint.created_at)
        own = replace(
            checkpoint,
            trial_id=trial_id,
            experiment_id=trial.experiment_id,
            created_at=self._screening.time(allocation_id, "checkpoint", created_at, time.time()),
            delete_request_id="",
        )
        await self._store.commit(
            lambda records: (
                abandoned(records, own) if is_superseded(records, allocation_id) else checkpointed(records, own)
            )
        )
        if problem := find_taken(self._store.state, own):
            _log.warning("a checkpoint is not recorded", trial_id=trial_id, reason=problem)
            raise invalid("checkpoint.taken", f"trial {trial_id}: {problem}")

    def _clock_of(self, allocation_id: str, node_rank: int) -> AgentClock:
        return self._sessions.clock_of(self._agent_id_of(allocation_id, node_rank))

    def _agent_id_of(self, allocation_id: str, node_rank: int) -> str:
        """Returns the id of the member's agent; empty where there is no such member."""
        allocation = self._store.state.find(Allocation, allocation_id)
        members = allocation.members if allocation else ()
        return next((member.agent_id for member in members if member.node_rank == node_rank), "")

    async def _unneeded(self, allocation_id: str, trial: Trial, checkpoint_id: str) -> None:
        """Deletes a checkpoint that a script has deleted. A refusal is logged, and must not block the script's next
        reports.
        """
        checkpoint = self._store.state.find(Checkpoint, checkpoint_id)
        if checkpoint is None or checkpoint.experiment_id != trial.experiment_id:
            _log.warning("a trial may not delete what is not its experiment's", trial_id=trial.id, id=checkpoint_id)
            return
        try:
            await self._commit(
                allocation_id, lambda records: delete_checkpoints(records, [checkpoint_id], allocation_id)
            )
        except GanglineError as error:
            if not error.code.startswith("checkpoint."):
                raise
            _log.warning("a checkpoint stays that a script has deleted", trial_id=trial.id, reason=error.message)

    def _observe_start(self, allocation_id: str) -> None:
        """Observes every phase that has ended since the last call, once. An allocation that is gone was observed as it
        ended.
        """
        allocation = self._store.state.find(Allocation, allocation_id)
        if allocation is not None and allocation_id in self._observed:
            _observe_phases(self._observed[allocation_id], allocation.timeline)
            self._observed[allocation_id] = allocation.timeline

    def _observe_rest(self, allocation_id: str) -> None:
        """Observes the remaining phases of an ended allocation. A short command starts and ends in one change, in which
        its trial has taken over its timeline.
        """
        trial = self._store.state.find(Trial, parse_allocation_id(allocation_id)[0])
        before = self._observed.pop(allocation_id, None)
        if before is not None and trial is not None:
            _observe_phases(before, trial.timeline)


def _observe_phases(before: Timeline, after: Timeline) -> None:
    phases = [field.name for field in fields(Timeline)]
    for previous, phase in itertools.pairwise(phases):
        begun, ended = getattr(after, previous), getattr(after, phase)
        if begun and ended and not getattr(before, phase):
            metrics.START_SECONDS.labels(phase.removesuffix("_at")).observe(max(0.0, ended - begun))
