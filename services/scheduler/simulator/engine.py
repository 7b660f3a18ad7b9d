"""PURE: plays a trace in virtual time with a planner.

Owns the events (a submission, the end of work, stopped work gives its slots back, the first report of progress) and the
state of the virtual cluster. After every instant at which something changed while requests wait, the planner decides,
exactly as in the leader's loop. Virtual time costs nothing: hours may pass between two plans.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from services.scheduler.placement.capacity.feasibility import can_hold
from services.scheduler.placement.plan import Plan
from services.scheduler.placement.request.assignment import Assignment
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, Running, Snapshot
from services.scheduler.simulator.head import HeadWatch
from services.scheduler.simulator.played import ClusterMoment, EtaAnswer, Played, Run, Spell
from services.scheduler.simulator.strategy import POOL, SimulatedStrategy
from services.scheduler.simulator.submission import (
    Estimates,
    TraceSubmission,
    estimated_end_at,
    estimated_run_seconds,
    known_after,
)
from services.scheduler.state.run_history import FEWEST_ENDED

_Kind = Literal["end", "stopped", "report", "submit"]
_Event = tuple[float, int, _Kind, str, int]


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Configures a simulation."""

    estimates: Estimates = "progress"
    stop_seconds: float = 10.0  # time from the order to stop until the slots are free
    restart_seconds: float = 30.0  # time that a preempted request loses when it begins again
    # Ages in seconds at which the ETA is asked for: when a request first has to wait, and at the first plan after it
    # has waited for each of these times
    ask_at_ages: tuple[float, ...] = (0.0, 600.0, 3600.0)


@dataclass(slots=True)
class _Job:
    """Tracks one submission."""

    submission: TraceSubmission
    done_seconds: float = 0.0
    restart_seconds: float = 0.0
    first_started_at: float = -1.0
    attempt: int = 0  # counts its spells, so that an event of an earlier spell is recognised as stale
    num_preemptions: int = 0
    answers: list[EtaAnswer] = field(default_factory=list)


def play(
    submissions: Iterable[TraceSubmission],
    sizes_of_agents: Sequence[int],
    strategy: SimulatedStrategy,
    context: EngineContext | None = None,
) -> Played:
    """Plays until the last submission has ended. Submissions that these agents can never hold are set aside."""
    return _Engine(submissions, sizes_of_agents, strategy, context or EngineContext()).run()


class _Engine:
    def __init__(
        self,
        submissions: Iterable[TraceSubmission],
        sizes: Sequence[int],
        strategy: SimulatedStrategy,
        context: EngineContext,
    ) -> None:
        self._strategy, self._context = strategy, context
        self._num_slots = sum(sizes)
        self._agents = {f"a{n}": AgentRoom(f"a{n}", POOL, size) for n, size in enumerate(sizes, 1)}
        self._jobs: dict[str, _Job] = {}
        self._refused: list[TraceSubmission] = []
        self._pending: dict[str, PendingRequest] = {}
        self._running: dict[str, Running] = {}
        self._events: list[_Event] = []
        # Orders events of one instant, and keeps heapq from comparing the rest of the tuple.
        self._numbers = count()
        self._watch = HeadWatch(strategy.config)
        self._runs: dict[str, Run] = {}
        self._spells: list[Spell] = []
        self._ended_seconds: list[float] = []
        self._moments: list[ClusterMoment] = []
        self._questions: list[tuple[float, float, str]] = []
        self._admit(submissions, sizes)

    def run(self) -> Played:
        while self._events:
            now = self._events[0][0]
            has_changed = False
            while self._events and self._events[0][0] == now:
                _, _, kind, name, attempt = heappop(self._events)
                has_changed |= self._apply(kind, name, attempt, now)
            if has_changed and self._pending:
                self._plan(now)
            if has_changed:
                self._note(now)
        return Played(
            self._num_slots,
            tuple(self._runs[name] for name in self._jobs),
            tuple(self._refused),
            tuple(self._spells),
            tuple(self._moments),
            tuple(self._watch.heads),
        )

    def _admit(self, submissions: Iterable[TraceSubmission], sizes: Sequence[int]) -> None:
        is_heterogeneous = self._strategy.config.allow_heterogeneous_fits
        for submission in submissions:
            if can_hold(submission.slots, sizes, submission.is_single_agent, is_heterogeneous):
                self._jobs[submission.id] = _Job(submission)
                self._at(submission.submitted_at, "submit", submission.id)
            else:
                self._refused.append(submission)

    def _at(self, at: float, kind: _Kind, name: str, attempt: int = 0) -> None:
        heappush(self._events, (at, next(self._numbers), kind, name, attempt))

    def _apply(self, kind: _Kind, name: str, attempt: int, now: float) -> bool:
        """Applies an event and returns whether the planner has to run for it."""
        job = self._jobs[name]
        if kind == "submit":
            self._queue(job)
            if self._strategy.is_ours:
                for age in self._context.ask_at_ages:
                    heappush(self._questions, (now + age, age, name))
            return True
        # An event of an earlier spell, which a preemption has made stale.
        if attempt != job.attempt or name not in self._running:
            return False
        match kind:
            case "report":
                self._report(job, now)
                return False
            case "end":
                self._end(job, now)
            case "stopped":
                self._stopped(job, now)
        return True

    def _queue(self, job: _Job) -> None:
        submission = job.submission
        self._pending[submission.id] = PendingRequest(
            submission.id,
            submission.group,
            POOL,
            submission.slots,
            priority=submission.priority,
            is_single_agent=submission.is_single_agent,
            is_preemptible=submission.is_preemptible,
            submitted_at=submission.submitted_at,
            estimated_seconds=estimated_run_seconds(
                submission, self._context.estimates, job.done_seconds, job.restart_seconds
            ),
            is_bounded=self._context.estimates == "exact",
        )

    def _plan(self, now: float) -> None:
        requests = dict(self._pending)
        snapshot = Snapshot(
            (self._strategy.config,),
            tuple(self._agents.values()),
            tuple(requests.values()),
            tuple(self._running.values()),
            typical_run_seconds={POOL: self._typical_seconds()},
        )
        decided = self._strategy.decide(snapshot, now)
        if self._strategy.has_head:
            self._watch.look(snapshot, decided, requests, now)
        self._answer(decided, now)
        for assignment in decided.assignments:
            self._start(assignment, now)
        for preemption in decided.preemptions:
            self._stop(preemption.allocation_id, now)

    def _typical_seconds(self) -> float:
        """Returns the median run time of what has ended so far; 0 while there are too few."""
        return self._ended_seconds[len(self._ended_seconds) // 2] if len(self._ended_seconds) >= FEWEST_ENDED else 0.0

    def _answer(self, decided: Plan, now: float) -> None:
        """Records the ETA answers that are due, but only for requests that have waited ever since their submission."""
        starting = {assignment.trial_id for assignment in decided.assignments}
        while self._questions and self._questions[0][0] <= now:
            _, age, name = heappop(self._questions)
            if name in self._pending and name not in starting and not self._jobs[name].attempt:
                self._jobs[name].answers.append(EtaAnswer(now, age, decided.reasons[name].eta_at))

    def _start(self, assignment: Assignment, now: float) -> None:
        job, request = self._jobs[assignment.trial_id], self._pending.pop(assignment.trial_id)
        submission = job.submission
        job.attempt += 1
        if job.first_started_at < 0:
            job.first_started_at = now
        self._occupy(assignment.slots_by_agent, 1)
        work = Running(
            submission.id,
            submission.id,
            request.group,
            POOL,
            assignment.slots_by_agent,
            priority=submission.priority,
            is_preemptible=submission.is_preemptible,
            started_at=now,
            submitted_at=submission.submitted_at,
            is_on_call=assignment.is_on_call,
        )
        self._running[submission.id] = work
        left = submission.duration_seconds - job.done_seconds + job.restart_seconds
        self._at(now + left, "end", submission.id, job.attempt)
        known_seconds = known_after(self._context.estimates)
        if known_seconds is not None and known_seconds < left:
            self._at(now + known_seconds, "report", submission.id, job.attempt)

    def _report(self, job: _Job, now: float) -> None:
        """Records that the progress is known from here on."""
        submission, work = job.submission, self._running[job.submission.id]
        began_at = work.started_at + job.restart_seconds
        end_at = estimated_end_at(submission, self._context.estimates, began_at, job.done_seconds)
        if not work.is_stopping:
            is_exact = self._context.estimates == "exact"
            self._running[submission.id] = replace(work, estimated_end_at=end_at, is_bounded=is_exact)

    def _stop(self, name: str, now: float) -> None:
        """Orders a stop: the work saves its progress and gives its slots back a little later, unless it ends by itself
        before."""
        job, work = self._jobs[name], self._running[name]
        stopped_at = now + self._context.stop_seconds
        # The work may end before that by itself; with exact estimates the planner knows when.
        end_at = min(stopped_at, work.estimated_end_at) if work.is_bounded else stopped_at
        self._running[name] = replace(work, is_stopping=True, estimated_end_at=end_at)
        self._at(stopped_at, "stopped", name, job.attempt)

    def _stopped(self, job: _Job, now: float) -> None:
        """Requeues stopped work. Its progress since the order does not count."""
        work = self._running[job.submission.id]
        ran = now - self._context.stop_seconds - work.started_at - job.restart_seconds
        self._leave(job, now)
        job.done_seconds += max(0.0, ran)
        job.restart_seconds = self._context.restart_seconds
        job.num_preemptions += 1
        self._queue(job)

    def _end(self, job: _Job, now: float) -> None:
        self._leave(job, now)
        insort(self._ended_seconds, job.submission.duration_seconds)
        answers = tuple(job.answers)
        self._runs[job.submission.id] = Run(job.submission, job.first_started_at, now, job.num_preemptions, answers)

    def _leave(self, job: _Job, now: float) -> None:
        work = self._running.pop(job.submission.id)
        self._occupy(work.slots_by_agent, -1)
        self._spells.append(Spell(work.trial_id, work.slots_by_agent, work.started_at, now))

    def _occupy(self, slots_by_agent: Mapping[str, int], sign: int) -> None:
        for agent_id, slots in slots_by_agent.items():
            agent = self._agents[agent_id]
            self._agents[agent_id] = replace(agent, used=agent.used + sign * slots)

    def _note(self, now: float) -> None:
        busy = sum(agent.used for agent in self._agents.values())
        self._moments.append(ClusterMoment(now, len(self._pending), busy))
