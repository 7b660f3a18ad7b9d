"""Whether a gang hangs, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gangline.domain.beat import BREAK, UNKNOWN, Collectives, Phase, Reading, Where
from gangline.domain.failure import HangRule
from services.trial_runner.watchdog.hang_rule import (
    MAX_LOOK_SECONDS,
    NUM_FIRST,
    NUM_RECENT,
    Hang,
    ProgressWatch,
    find_hang,
    limit_of,
    look,
)

RULE = HangRule(seconds=60, factor=5, start_seconds=1800, rest_seconds=3600)
WATCHED, RESTING, OUTSIDE, STARTING = Phase.WATCHED, Phase.RESTING, Phase.OUTSIDE, Phase.STARTING
Readings = dict[int, Reading]
BEFORE = "before the first completed batch"


def at(batches: int, part: int = 0, phase: Phase = WATCHED) -> Reading:
    return Reading(batches, part, phase, 100)


def play(readings: Iterable[Readings], watch: ProgressWatch | None = None, every: float = 1.0) -> ProgressWatch:
    """One look a second."""
    watch = watch or ProgressWatch()
    for seen in readings:
        watch = look(watch, seen, every)
    return watch


def first_hang(readings: Iterable[Readings], watch: ProgressWatch | None = None) -> tuple[int, Hang] | None:
    """After how many looks."""
    watch = watch or ProgressWatch()
    for number, seen in enumerate(readings, 1):
        watch = look(watch, seen, 1.0)
        if (hang := find_hang(watch, RULE)) is not None:
            return number, hang
    return None


STARTED = play([{0: at(0, 0, STARTING), 1: at(0, 0, STARTING)}, {0: at(1), 1: at(1)}])


def test_a_gang_that_stands_still_hangs_after_the_limit() -> None:
    stands = {0: at(5, 2), 1: at(5, 1)}
    first = first_hang([stands] * 70, STARTED)
    assert first is not None
    looks, hang = first
    # The first of them was a move, the next 60 are within the limit.
    assert looks == 62
    assert (hang.rank, hang.batches, hang.newest_batches) == (1, 5, None)
    assert hang.message == ("hung: it has stood still after batch 5 for 61 s (limit 60 s), while others came further")


def test_the_rank_that_is_behind_is_named_with_how_far_the_others_came() -> None:
    first = first_hang([{0: at(9), 1: at(9), 2: at(7), 3: at(8)}] * 70, STARTED)
    assert first is not None
    assert (first[1].rank, first[1].batches, first[1].newest_batches) == (2, 7, 9)
    assert first[1].message.endswith("after batch 7 for 61 s (limit 60 s), while others reached batch 9")


def test_what_is_said_of_equals_and_of_one_alone() -> None:
    together = first_hang([{0: at(5), 1: at(5)}] * 70, STARTED)
    alone = first_hang([{0: at(5)}] * 70, STARTED)
    assert together is not None
    assert alone is not None
    assert together[1].message == "hung: it has stood still after batch 5 for 61 s (limit 60 s), as do all others"
    assert alone[1].message == "hung: it has stood still after batch 5 for 61 s (limit 60 s)"


def test_ranks_that_do_not_count_batches_are_compared_by_what_they_did() -> None:
    first = first_hang([{0: at(5), 1: at(UNKNOWN, 9), 2: at(UNKNOWN, 8), 3: at(UNKNOWN, 9)}] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 2
    assert first[1].message == "hung: it has stood still for 61 s (limit 60 s), while others came further"


def test_no_rank_hangs_while_one_moves_on() -> None:
    assert first_hang([{0: at(5), 1: at(5, second)} for second in range(500)], STARTED) is None


def test_no_rank_hangs_outside_of_training() -> None:
    assert first_hang([{0: at(0, 0, OUTSIDE), 1: at(0, 0, OUTSIDE)}] * 5000) is None


@pytest.mark.parametrize(
    ("late", "place"),
    [
        (Reading(), " before its code began"),
        (replace(at(0, 0, STARTING), where=Where.START), f" in the start of its code {BEFORE}"),
        (replace(at(0, 0, OUTSIDE), where=Where.GROUP), f" in joining the process group {BEFORE}"),
        (replace(at(0, 1, STARTING), where=Where.DATA), f" in the data loader {BEFORE}"),
    ],
)
def test_a_start_has_a_limit_of_its_own_and_names_the_rank_that_is_behind(late: Reading, place: str) -> None:
    ahead = replace(at(0, 2, STARTING), where=Where.FORWARD)
    first = first_hang([{0: ahead, 1: late, 2: ahead}] * 5000)
    assert first is not None
    # The first look is a move.
    assert first[0] == 1802
    assert first[1].rank == 1
    assert first[1].message == f"hung: it has stood still{place} for 1801 s (limit 1800 s), while others came further"


def test_a_rank_that_has_begun_is_further_than_one_that_builds_its_trial() -> None:
    building = replace(at(0, 7, STARTING), where=Where.BUILD)
    first = first_hang([{0: replace(at(0, 0, STARTING), where=Where.BETWEEN), 1: building}] * 5000)
    assert first is not None
    assert first[1].rank == 1


def test_a_rest_is_bounded_too() -> None:
    rests = replace(at(5, 0, RESTING), where=Where.CALLBACK)
    first = first_hang([{0: at(5, 1), 1: rests}] * 5000, STARTED)
    assert first is not None
    assert (first[0], first[1].rank) == (3602, 1)
    assert first[1].message.startswith("hung: it has stood still after batch 5 in a callback for 3601 s")


def test_a_slow_compilation_raises_the_limits_of_starts_and_rests_too() -> None:
    slow = play([{0: at(0, 1, STARTING)}] * 1000 + [{0: at(1)}], ProgressWatch())
    assert limit_of(slow, RULE) == 5000
    assert first_hang([{0: at(1, 0, RESTING)}] * 4999, slow) is None


def entered(world: int, others: int = 0, background: int = 0, **more: Any) -> Reading:
    return replace(at(5, 2), where=Where.FORWARD, collectives=Collectives(world, others, background), **more)


@pytest.mark.parametrize(
    "seen",
    [
        [entered(9), entered(9), entered(8), entered(9)],
        [entered(9, 4), entered(9, 4), entered(9, 3), entered(9, 4)],
        [entered(9, 4, 2), entered(9, 4, 3), entered(9, 4, 1), entered(9, 4, 2)],
        # A background save lags on another rank: it keeps no step with training.
        [entered(9, 4, 1), entered(9, 4, 3), entered(9, 3, 3), entered(9, 4, 3)],
    ],
)
def test_the_rank_that_has_not_entered_the_collective_is_named(seen: list[Reading]) -> None:
    first = first_hang([dict(enumerate(seen))] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 2
    place = "after batch 5 in the forward pass for 61 s (limit 60 s)"
    lag = "while others wait in a collective that it has not entered"
    assert first[1].message == f"hung: it has stood still {place}, {lag}"


def test_a_stage_that_computes_is_named_before_those_that_wait_for_it() -> None:
    """In a pipeline the ranks enter different collectives."""
    waiting = replace(entered(3), where=Where.EXCHANGE)
    first = first_hang([{0: waiting, 1: entered(9), 2: entered(8), 3: waiting}] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 1
    assert first[1].message.endswith("in the forward pass for 61 s (limit 60 s), while others wait")


def test_what_ranks_did_counts_before_what_they_entered() -> None:
    behind = replace(entered(9), part=1)
    first = first_hang([{0: entered(8), 1: behind}] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 1


def test_of_ranks_that_are_behind_the_one_is_named_that_entered_fewer_collectives() -> None:
    """Groups of some ranks each: one group waits for the rank, the other one has gone on."""
    further = replace(entered(9, 9), part=3)
    first = first_hang([{0: entered(9, 4), 1: entered(9, 3), 2: further, 3: further}] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 1
    assert first[1].message.endswith("while others wait in a collective that it has not entered")


def test_ranks_of_a_script_are_told_apart_by_what_they_entered() -> None:
    script = [replace(entered(world), batches=batches) for world, batches in ((9, 3), (9, UNKNOWN), (8, UNKNOWN))]
    first = first_hang([dict(enumerate(script))] * 70, STARTED)
    assert first is not None
    assert first[1].rank == 2


@pytest.mark.parametrize("phase", [WATCHED, RESTING])
def test_a_stopped_process_is_named_first_and_does_not_rest(phase: Phase) -> None:
    stopped = replace(entered(9, is_stopped=True), phase=phase)
    first = first_hang([{0: entered(8), 1: stopped, 2: entered(9)}] * 70, STARTED)
    assert first is not None
    assert (first[0], first[1].rank) == (62, 1)
    assert "; its process is stopped (SIGSTOP or a debugger), while others wait" in first[1].message


def test_counts_of_collectives_and_signs_of_life_are_progress() -> None:
    assert first_hang([{0: at(5), 1: entered(second)} for second in range(500)], STARTED) is None
    assert first_hang([{0: at(5), 1: replace(at(5), life=second)} for second in range(500)], STARTED) is None


def test_no_rank_hangs_soon_while_one_may_take_long() -> None:
    assert first_hang([{0: at(5), 1: at(5, 0, RESTING)}] * 3600, STARTED) is None


def test_the_end_of_a_rest_starts_the_clock_anew() -> None:
    rested = play([{0: at(5), 1: at(5, 0, RESTING)}] * 500, STARTED)
    first = first_hang([{0: at(5), 1: at(5, 1)}] * 70, rested)
    assert first is not None
    assert first[0] == 62


def test_a_rank_outside_of_training_holds_nobody_back() -> None:
    assert first_hang([{0: at(5), 1: at(5, 0, OUTSIDE)}] * 70, STARTED) is not None


def test_slow_steps_raise_the_limit_and_are_forgotten() -> None:
    trained = play([{0: at(batch)} for batch in range(2, 3 + NUM_FIRST)], STARTED)
    slow = play([{0: at(20)}] * 30 + [{0: at(21)}], trained)
    assert limit_of(slow, RULE) == 5 * 30
    # Several moves make a step: they are not what is counted.
    fast = play([{0: at(batch, part)} for batch in range(22, 20 + NUM_RECENT) for part in range(3)], slow)
    assert limit_of(fast, RULE) == 5 * 30
    fast = play([{0: at(batch)} for batch in range(20 + NUM_RECENT, 22 + NUM_RECENT)], fast)
    assert limit_of(fast, RULE) == 60


def test_a_step_is_all_from_batch_to_batch() -> None:
    slow = play([{0: at(2)}] * 12 + [{0: at(2, 1)}] * 9 + [{0: at(2, 2)}] * 4 + [{0: at(3)}], STARTED)
    assert limit_of(slow, RULE) == 5 * (12 + 9 + 4)


def test_a_stand_raises_the_limit_before_its_step_is_complete() -> None:
    slow = play([{0: at(2)}] * 40 + [{0: at(2, 1)}], STARTED)
    assert limit_of(slow, RULE) == 5 * 40


def test_a_validation_is_no_step_but_its_slowest_batch_counts() -> None:
    batches = [{0: at(2, BREAK + batch)} for batch in range(100) for _ in range(15)]
    validated = play([{0: at(2)}, *batches, {0: at(2, BREAK + 100)}, {0: at(3)}], STARTED)
    assert limit_of(validated, RULE) == 5 * 15


@pytest.mark.parametrize("nth", [1, NUM_FIRST])
def test_the_first_steps_tell_for_ever_how_long_compiling_takes(nth: int) -> None:
    before = [{0: at(0, 1, STARTING)}] + [{0: at(batch)} for batch in range(1, nth)]
    compiled = play([*before, *([before[-1]] * 89), {0: at(nth)}])
    trained = play([{0: at(batch, part)} for batch in range(nth + 1, 999) for part in range(3)], compiled)
    assert limit_of(trained, RULE) == 5 * 90
    recompiles = {0: at(999, 1)}
    assert first_hang([recompiles] * (5 * 90), trained) is None
    assert first_hang([recompiles] * (5 * 90 + 2), trained) is not None


def test_the_first_step_tells_how_long_steps_may_take() -> None:
    compiled = play([{0: at(0, 1, STARTING)}] * 20 + [{0: at(0, 2, STARTING)}] * 21 + [{0: at(1)}])
    assert limit_of(compiled, RULE) == 5 * 41


def test_what_comes_before_the_first_step_is_no_step() -> None:
    prepared = play([{0: at(0, 0, STARTING)}] * 500 + [{0: at(0, 1, STARTING)}, {0: at(1)}])
    assert limit_of(prepared, RULE) == 60


def test_a_long_rest_does_not_raise_the_limit() -> None:
    rested = play([{0: at(5, 0, RESTING)}] * 500 + [{0: at(5, 1)}, {0: at(6)}], STARTED)
    assert limit_of(rested, RULE) == 60


def test_a_runner_that_was_held_up_blames_nobody() -> None:
    watch = look(play([{0: at(5)}], STARTED), {0: at(5)}, 3600.0)
    assert watch.still_seconds == MAX_LOOK_SECONDS
    assert find_hang(watch, RULE) is None


def test_a_rank_that_ended_is_left_out() -> None:
    first = first_hang([{0: at(5), 1: at(3)}] * 20 + [{0: at(5)}] * 70, STARTED)
    assert first is not None
    assert (first[0], first[1].rank) == (82, 0)


def test_a_rank_that_rests_further_on_waits_for_the_one_that_hangs() -> None:
    first = first_hang([{0: at(6, 0, RESTING), 1: at(5, 3)}] * 70, STARTED)
    assert first is not None
    assert (first[1].rank, first[1].batches) == (1, 5)
    assert first_hang([{0: at(5, 0, RESTING), 1: at(6)}] * 3600, STARTED) is None
