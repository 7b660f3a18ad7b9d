"""Invariants of traces in virtual time, for every strategy: no slot twice, every request ends, nothing depends on
chance.

With known run times no head starts later than it was first promised, and no work is preempted on call for ever.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from services.scheduler.placement.request.order import natural_key
from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.figure import figures_of
from services.scheduler.simulator.load import LOADS, draw_load
from services.scheduler.simulator.played import Played
from services.scheduler.simulator.strategy import STRATEGIES, SimulatedStrategy, choose_strategies
from services.scheduler.simulator.submission import ESTIMATES, Estimates, TraceSubmission
from services.scheduler.simulator.trace_file import dump_trace, parse_trace
from tests.support.examples import examples

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SETTINGS = st.builds(
    EngineContext,
    estimates=st.sampled_from(ESTIMATES),
    stop_seconds=st.sampled_from([0.0, 3.0, 10.0]),
    restart_seconds=st.sampled_from([0.0, 30.0]),
    ask_at_ages=st.just((0.0, 50.0)),
)


@st.composite
def traces(draw: st.DrawFn, priorities: tuple[int, ...] = (10, 42, 60)) -> list[TraceSubmission]:
    submissions = []
    for number in range(draw(st.integers(1, 14))):
        seconds = float(draw(st.sampled_from([1, 20, 61, 100, 400])))
        submissions.append(
            TraceSubmission(
                id=f"t{number}",
                submitted_at=float(draw(st.integers(0, 200))),
                slots=draw(st.integers(1, 8)),
                duration_seconds=seconds,
                planned_seconds=seconds * draw(st.sampled_from([1, 1, 3])),
                priority=draw(st.sampled_from(priorities)),
                group=draw(st.sampled_from(["g1", "g2"])),
                is_preemptible=draw(st.integers(0, 4)) > 0,
                is_single_agent=draw(st.integers(0, 4)) == 0,
            )
        )
    return submissions


@st.composite
def contended_traces(draw: st.DrawFn) -> list[TraceSubmission]:
    """Work of drawn lengths, then a wide request, then narrow ones that may pass it."""
    stages = ((0.0, 2, 6, (1, 3)), (1.0, 1, 1, (2, 8)), (2.0, 1, 4, (1, 2)))
    submissions: list[TraceSubmission] = []
    for at, fewest, most, (narrow, wide) in stages:
        for _ in range(draw(st.integers(fewest, most))):
            seconds = float(draw(st.integers(5, 300)))
            submissions.append(
                TraceSubmission(
                    id=f"t{len(submissions)}",
                    submitted_at=at,
                    slots=draw(st.integers(narrow, wide)),
                    duration_seconds=seconds,
                    planned_seconds=seconds * draw(st.sampled_from([1, 3])),
                )
            )
    return submissions


def _assert_sound(played: Played, sizes: list[int], trace: list[TraceSubmission]) -> None:
    assert sorted(
        [*(run.submission.id for run in played.runs), *(submission.id for submission in played.refused)]
    ) == sorted(submission.id for submission in trace)
    room = {f"a{number}": size for number, size in enumerate(sizes, 1)}
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    slots = {submission.id: submission.slots for submission in trace}
    for spell in played.spells:
        assert sum(spell.slots_by_agent.values()) == slots[spell.submission_id], "a gang is whole"
        for agent, taken in spell.slots_by_agent.items():
            changes[agent] += [(spell.started_at, taken), (spell.ended_at, -taken)]
    for agent, agent_changes in changes.items():
        used = 0
        # What ends at an instant makes room for what starts at it.
        for _, change in sorted(agent_changes):
            used += change
            assert 0 <= used <= room[agent], "no slot belongs to two"
        assert used == 0
    for run in played.runs:
        assert run.started_at >= run.submission.submitted_at
        assert run.wait_seconds >= -1e-6
    assert all(0 <= moment.slots_busy <= played.num_slots for moment in played.moments)
    assert (played.moments[-1].num_waiting, played.moments[-1].slots_busy) == (0, 0) if played.runs else True


@settings(deadline=None, max_examples=examples(150))
@given(trace=traces(), sizes=SIZES, strategy=st.sampled_from(STRATEGIES), context=SETTINGS)
def test_no_slot_twice_and_every_request_ends(
    trace: list[TraceSubmission], sizes: list[int], strategy: SimulatedStrategy, context: EngineContext
) -> None:
    played = play(trace, sizes, strategy, context)
    _assert_sound(played, sizes, trace)
    assert play(trace, sizes, strategy, context) == played
    if played.runs and max(run.submission.submitted_at for run in played.runs) > played.runs[0].submission.submitted_at:
        assert 0 <= figures_of(strategy.name, played, strategy.has_head).utilisation <= 1


@settings(deadline=None, max_examples=examples(200))
@given(trace=traces(priorities=(42,)), sizes=SIZES)
def test_with_known_run_times_no_head_starts_later_than_first_promised(
    trace: list[TraceSubmission], sizes: list[int]
) -> None:
    played = play(trace, sizes, STRATEGIES[0], EngineContext("exact"))
    for head in played.heads:
        assert head.late_seconds <= 1e-6
        assert head.moved_seconds == 0


@settings(deadline=None, max_examples=examples(200))
@given(trace=traces(priorities=(42,)), sizes=SIZES, context=SETTINGS)
def test_on_call_a_request_is_stopped_once_at_most_for_each_that_comes_before_it(
    trace: list[TraceSubmission], sizes: list[int], context: EngineContext
) -> None:
    """So every request makes progress: at some time it is first, and then no other of its priority preempts it."""
    (strategy,) = choose_strategies(["priority, preemption"])
    played = play(trace, sizes, strategy, context)
    ordered = sorted(played.runs, key=lambda run: (run.submission.submitted_at, natural_key(run.submission.id)))
    for place, run in enumerate(ordered):
        assert run.num_preemptions <= place


@settings(deadline=None, max_examples=examples(300))
@given(trace=traces(priorities=(42,)) | contended_traces(), sizes=SIZES, context=SETTINGS)
def test_backfill_never_delays_the_first_head_whatever_is_known_of_run_times(
    trace: list[TraceSubmission], sizes: list[int], context: EngineContext
) -> None:
    """Run times are drawn, and so is the order of ends. Up to the head's turn nothing differs from a pool without
    backfill.
    """
    filled, strict = choose_strategies(["priority", "priority, no backfill"])
    starts = {run.submission.id: run.started_at for run in play(trace, sizes, strict, context).runs}
    played = play(trace, sizes, filled, context)
    heads = [run for run in played.runs if starts[run.submission.id] > run.submission.submitted_at]
    if heads:
        first = min(heads, key=lambda run: (run.submission.submitted_at, natural_key(run.submission.id)))
        assert first.started_at <= starts[first.submission.id] + 1e-6


@settings(deadline=None, max_examples=examples(200))
@given(trace=traces(priorities=(42,)), sizes=SIZES, context=SETTINGS)
def test_on_call_work_costs_the_first_head_no_more_than_the_time_to_stop(
    trace: list[TraceSubmission], sizes: list[int], context: EngineContext
) -> None:
    """For any knowledge of run times: up to its turn nothing differs from a pool in which no request passes it."""
    trace = [replace(submission, is_preemptible=True) for submission in trace]
    on_call, strict = choose_strategies(["priority, preemption", "priority, preemption, no backfill"])
    starts = {run.submission.id: run.started_at for run in play(trace, sizes, strict, context).runs}
    heads = [
        run
        for run in play(trace, sizes, on_call, context).runs
        if starts[run.submission.id] > run.submission.submitted_at
    ]
    if heads:
        first = min(heads, key=lambda run: (run.submission.submitted_at, natural_key(run.submission.id)))
        assert first.started_at <= starts[first.submission.id] + context.stop_seconds + 1e-6


@settings(deadline=None, max_examples=examples(150))
@given(
    trace=traces() | traces(priorities=(42,)) | contended_traces(),
    sizes=SIZES,
    estimates=st.sampled_from(ESTIMATES),
    strategy=st.sampled_from(STRATEGIES[:4]),
)
def test_backfill_moves_no_head(
    trace: list[TraceSubmission], sizes: list[int], estimates: Estimates, strategy: SimulatedStrategy
) -> None:
    played = play(trace, sizes, strategy, EngineContext(estimates))
    assert [head for head in played.heads if head.moved_seconds > 0] == []


@settings(deadline=None, max_examples=examples(60))
@given(
    name=st.sampled_from(sorted(LOADS)),
    seed=st.integers(0, 10_000),
    slots=st.integers(1, 600),
    days=st.floats(0.01, 3),
    intensity=st.floats(0.1, 2),
)
def test_a_drawn_load_is_in_order_within_bounds_and_can_be_written(
    name: str, seed: int, slots: int, days: float, intensity: float
) -> None:
    submissions = draw_load(LOADS[name], random.Random(seed), slots, days, intensity=intensity)
    times = [submission.submitted_at for submission in submissions]
    assert times == sorted(times)
    # By night a day's worth takes a little longer than by the clock, and the other way round by day.
    assert all(0 <= at <= (days + 0.2) * 86_400 for at in times)
    assert all(1 <= submission.slots <= slots for submission in submissions)
    assert all(1 <= submission.duration_seconds <= submission.planned_seconds for submission in submissions)
    if submissions:
        assert parse_trace(dump_trace(submissions)) == submissions
