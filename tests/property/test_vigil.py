"""What holds of the watch over a gang, whatever its ranks do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.beat import Phase, Reading
from gangline.domain.failure import HangRule
from services.trial_runner.vigil import MAX_LOOK_SECONDS, Vigil, find_hang, look

readings = st.builds(Reading, st.integers(0, 3), st.integers(0, 2), st.sampled_from(Phase), st.just(1))
looks = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 3), readings, max_size=4), st.floats(0.01, 20)), min_size=1, max_size=60
)
rules = st.builds(HangRule, st.floats(0.1, 30), st.floats(1, 6))


@given(looks, rules)
def test_a_hang_is_a_stand_longer_than_the_limit_of_ranks_that_should_move(
    seen: list[tuple[dict[int, Reading], float]], rule: HangRule
) -> None:
    vigil, stood, last = Vigil(), 0.0, None
    for found, seconds in seen:
        stood = stood + min(seconds, MAX_LOOK_SECONDS) if found == last else 0.0
        last = found
        vigil = look(vigil, found, seconds)
        hang = find_hang(vigil, rule)
        if hang is None:
            continue
        assert rule.seconds < hang.still_seconds <= stood + 1e-6
        watched = [reading.batches for reading in found.values() if reading.phase is Phase.WATCHED]
        # Who takes the time that it likes is not what the last of the others waits for.
        assert all(reading.batches > min(watched) for reading in found.values() if reading.phase is Phase.RESTING)
        assert found[hang.rank].batches == hang.batches
        assert hang.newest_batches in (None, max(watched))


@given(looks, rules)
def test_a_gang_that_should_move_and_never_does_hangs_in_bounded_time(
    seen: list[tuple[dict[int, Reading], float]], rule: HangRule
) -> None:
    vigil = Vigil()
    for found, seconds in seen:
        vigil = look(vigil, found, seconds)
    stuck = {0: Reading(9, 9, Phase.WATCHED, 1)}
    # No step seen before took longer than all looks together.
    longest = max(rule.seconds, rule.factor * MAX_LOOK_SECONDS * (len(seen) + 1))
    for _ in range(int(longest) + 3):
        vigil = look(vigil, stuck, 1.0)
    assert find_hang(vigil, rule) is not None
