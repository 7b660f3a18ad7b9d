"""Invariants of the watch over a gang, whatever its ranks do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.beat import BREAK, Phase, Reading
from gangline.domain.failure import HangRule
from services.trial_runner.watchdog.hang_rule import (
    MAX_LOOK_SECONDS,
    NUM_FIRST,
    NUM_RECENT,
    ProgressWatch,
    find_hang,
    limit_of,
    look,
)

readings = st.builds(Reading, st.integers(0, 3), st.sampled_from([0, 1, 2, BREAK]), st.sampled_from(Phase), st.just(1))
looks = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 3), readings, max_size=4), st.floats(0.01, 20)), min_size=1, max_size=60
)
rules = st.builds(HangRule, st.floats(0.1, 30), st.floats(1, 6))


@given(looks, rules)
def test_a_hang_is_a_stand_longer_than_the_limit_of_ranks_that_should_move(
    seen: list[tuple[dict[int, Reading], float]], rule: HangRule
) -> None:
    watch, stood, last = ProgressWatch(), 0.0, None
    for reading_by_rank, seconds in seen:
        stood = stood + min(seconds, MAX_LOOK_SECONDS) if reading_by_rank == last else 0.0
        last = reading_by_rank
        watch = look(watch, reading_by_rank, seconds)
        hang = find_hang(watch, rule)
        if hang is None:
            continue
        assert rule.seconds < hang.still_seconds <= stood + 1e-6
        watched = [reading.batches for reading in reading_by_rank.values() if reading.phase is Phase.WATCHED]
        # Who takes the time that it likes is not what the last of the others waits for.
        assert all(
            reading.batches > min(watched) for reading in reading_by_rank.values() if reading.phase is Phase.RESTING
        )
        assert reading_by_rank[hang.rank].batches == hang.batches
        assert hang.newest_batches in (None, max(watched))


@given(looks, rules)
def test_a_gang_that_should_move_and_never_does_hangs_in_bounded_time(
    seen: list[tuple[dict[int, Reading], float]], rule: HangRule
) -> None:
    watch = ProgressWatch()
    for reading_by_rank, seconds in seen:
        watch = look(watch, reading_by_rank, seconds)
    stuck = {0: Reading(9, 9, Phase.WATCHED, 1)}
    # No step seen before took longer than all looks together.
    longest = max(rule.seconds, rule.factor * MAX_LOOK_SECONDS * (len(seen) + 1))
    for _ in range(int(longest) + 3):
        watch = look(watch, stuck, 1.0)
    assert find_hang(watch, rule) is not None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=90), rules)
def test_the_limit_is_that_of_the_slowest_of_the_first_and_the_last_steps(
    steps: list[tuple[int, int, int]], rule: HangRule
) -> None:
    """Each step stands still so many seconds before each of its three moves."""
    watch = look(ProgressWatch(), {0: Reading(0, 0, Phase.WATCHED, 1)}, 1.0)
    for number, stands in enumerate(steps):
        for part, seconds in enumerate(stands, 1):
            before, after = (number, part - 1), (number, part) if part < len(stands) else (number + 1, 0)
            for place in (*[before] * seconds, after):
                watch = look(watch, {0: Reading(*place, Phase.WATCHED, 1)}, 1.0)
    took = [sum(stands) + len(stands) for stands in steps]
    slowest = max(*took[:NUM_FIRST], *took[-NUM_RECENT:])
    assert limit_of(watch, rule) == max(rule.seconds, rule.factor * slowest)
