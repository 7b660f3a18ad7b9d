"""When a waiting request is said to start: with exact run times and no later submission, that is when it starts in the
simulator."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from services.scheduler.placement import AgentRoom, Group, PendingRequest, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.capacity.outlook import LEAST_LEFT_SECONDS, LEAST_OVERRUN_SECONDS
from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.played import Run
from services.scheduler.simulator.strategy import choose_strategies
from services.scheduler.simulator.submission import TraceSubmission
from tests.support.examples import examples

# The forecast counts in steps that grow by a tenth.
STEP_RATIO = 0.1
FIRST_STEP_SECONDS = 15.0
POOL = "default"
SECONDS = st.integers(20, 5000).map(float)
ONCE = EngineContext("exact", stop_seconds=LEAST_LEFT_SECONDS, restart_seconds=0.0, ask_at_ages=(0.0,))


def _submission(number: int, slots: int, seconds: float, at: float = 0.0, priority: int = 42) -> TraceSubmission:
    return TraceSubmission(f"t{number}", at, slots, seconds, seconds, priority)


def _etas(runs: tuple[Run, ...]) -> list[tuple[float, float, float]]:
    """(asked at, expected start, start) of each run that had to wait and was asked about."""
    return [(answer.asked_at, answer.eta_at or 0.0, run.started_at) for run in runs for answer in run.answers]


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(1, 8), SECONDS), min_size=1, max_size=12),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_the_first_that_waits_starts_at_its_eta(rows: list[tuple[int, float]], sizes: list[int]) -> None:
    trace = [_submission(number, slots, seconds) for number, (slots, seconds) in enumerate(rows)]
    (strategy,) = choose_strategies(["priority, no backfill"])
    waiting = _etas(play(trace, sizes, strategy, ONCE).runs)
    assert all(eta >= asked_at for asked_at, eta, _ in waiting)
    if waiting:
        _, eta, started_at = waiting[0]
        assert abs(eta - started_at) < 1e-6


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(SECONDS, min_size=2, max_size=12))
def test_one_after_the_other_each_starts_at_its_eta(lengths: list[float]) -> None:
    trace = [_submission(number, 1, seconds) for number, seconds in enumerate(lengths)]
    (strategy,) = choose_strategies(["priority"])
    for _, eta, started_at in _etas(play(trace, [1], strategy, ONCE).runs):
        assert abs(eta - started_at) < 1e-6


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(SECONDS, min_size=2, max_size=12), st.integers(1, 3))
def test_beside_one_another_each_starts_at_its_eta_but_for_the_steps_of_time(lengths: list[float], size: int) -> None:
    """Each request that is ahead has promised slots, which come back when its own run ends. A forecast may be late by
    one step of time for each request that is ahead. It is never early."""
    trace = [_submission(number, 1, seconds) for number, seconds in enumerate(lengths)]
    (strategy,) = choose_strategies(["priority"])
    for number, (_, eta, started_at) in enumerate(_etas(play(trace, [size], strategy, ONCE).runs), 1):
        latest = started_at
        for _ in range(number):
            latest = latest * (1 + STEP_RATIO) + FIRST_STEP_SECONDS
        assert started_at - 1e-6 <= eta <= latest


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(SECONDS, min_size=1, max_size=3), st.lists(SECONDS, min_size=1, max_size=8), st.integers(1, 3))
def test_a_group_with_a_cap_starts_as_its_own_work_ends(busy: list[float], lengths: list[float], cap: int) -> None:
    """The pool has room for all of them: what keeps a request waiting is its group's own work alone, that which runs,
    that which starts now, and that which was told its ETA before."""
    running = tuple(
        Running(f"r{number}", f"r{number}", "g", POOL, {"a": 1}, estimated_end_at=seconds, is_bounded=True)
        for number, seconds in enumerate(busy[:cap])
    )
    requests = tuple(
        PendingRequest(f"t{number}", "g", POOL, 1, submitted_at=float(number), estimated_seconds=seconds)
        for number, seconds in enumerate(lengths)
    )
    pool = (PoolConfig(POOL),)
    agents = (AgentRoom("a", POOL, 99, len(running)),)
    decided = plan(Snapshot(pool, agents, requests, running, {"g": Group("g", max_slots=cap)}), 0.0)
    ends = [*(work.estimated_end_at for work in running), *[0.0] * (cap - len(running))]
    for request in requests:
        first = min(ends)
        ends[ends.index(first)] = first + request.estimated_seconds
        reason = decided.reasons.get(request.trial_id)
        eta_at = 0.0 if reason is None else reason.eta_at
        assert eta_at is not None
        assert abs(eta_at - first) < 1e-6, request.trial_id


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_request_that_has_work_stopped_starts_at_its_eta(sizes: list[int], data: st.DataObject) -> None:
    """All slots are busy for long with work that can be stopped. The more urgent requests come at once."""
    busy = [_submission(number, size, 50_000.0, priority=60) for number, size in enumerate(sizes)]
    urgent = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3), "urgent")
    trace = [
        *busy,
        *(_submission(number, slots, 500.0, 100.0, priority=10) for number, slots in enumerate(urgent, len(busy))),
    ]
    (strategy,) = choose_strategies(["priority, preemption"])
    runs = {run.submission.id: run for run in play(trace, sizes, strategy, ONCE).runs}
    first = runs.get(f"t{len(busy)}")
    if first is not None:
        assert _etas((first,)) == [(100.0, 100.0 + LEAST_LEFT_SECONDS, first.started_at)]
        assert first.started_at == 100.0 + LEAST_LEFT_SECONDS


_NOW = 10_000.0
# Work that began before now: its agent, its slots, the seconds since its start, its estimated end relative to now,
# None for unknown, and whether it is being stopped.
_WORK = st.tuples(
    st.integers(0, 2), st.integers(1, 4), st.floats(0, 5000), st.none() | st.floats(-30, 10), st.booleans()
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(_WORK, max_size=8), st.integers(1, 12), st.floats(0.01, 10))
def test_a_start_does_not_jump_while_nothing_happens(
    works: list[tuple[int, int, float, float | None, bool]], slots: int, passed: float
) -> None:
    """Between two cycles without an event, the expected start moves by 2 s a second at most, and by 1 s more.

    Each expected end moves by no more than that, and never backwards. The start of the request is a maximum of minima
    of these ends, and such a value moves no more than the end that moves most.
    """
    used = [0, 0, 0]
    running = []
    for number, (agent, wanted, elapsed, left, is_stopping) in enumerate(works):
        held = min(wanted, 4 - used[agent])
        if held:
            used[agent] += held
            end = 0.0 if left is None else _NOW + left
            running.append(
                Running(
                    f"{number}.1.1",
                    f"{number}.1",
                    str(number),
                    POOL,
                    {f"a{agent}": held},
                    started_at=_NOW - elapsed,
                    estimated_end_at=end,
                    is_stopping=is_stopping,
                )
            )
    agents = tuple(AgentRoom(f"a{agent}", POOL, 4, used=busy) for agent, busy in enumerate(used))
    snapshot = Snapshot((PoolConfig(POOL),), agents, (PendingRequest("99.1", "99", POOL, slots),), tuple(running))
    before, after = (dict(plan(snapshot, now).reasons).get("99.1") for now in (_NOW, _NOW + passed))
    assert (before is None) == (after is None)
    if before is None or after is None or before.eta_at is None or after.eta_at is None:
        return
    assert before.code == after.code
    assert -1e-6 <= after.eta_at - before.eta_at <= 2 * passed + LEAST_OVERRUN_SECONDS + 1e-6
