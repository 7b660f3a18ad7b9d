"""When something is due, which validation is best, and how often ranks look for a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.pytorch.training.schedule import BestMetric, Pace, Rungs, Schedule
from gangline.pytorch.trial.unit import Batch, Epoch, Position, Record, TrainUnit


def test_period_of_none_is_never_due() -> None:
    schedule = Schedule(max_length=Batch(4), reporting_period=Batch(2))
    position = Position(epoch_length=2, records_per_batch=1, batches=4, epoch=2)
    assert schedule.has_report(position)
    assert not schedule.has_validation(position)
    assert not schedule.has_checkpoint(position)
    assert schedule.is_over(position)


@pytest.mark.parametrize(
    ("rungs", "aggregation", "validated_at"),
    [
        ((Batch(3), Batch(5), Batch(12)), 1, [3, 5, 12]),
        # A rung in the middle of an optimizer step waits for its end.
        ((Batch(3), Batch(5)), 4, [4, 8]),
        ((Epoch(1), Epoch(3)), 1, [4, 12]),
        # 25 records are complete after 3 batches of 10.
        ((Record(25), Record(30), Record(31)), 1, [3, 4]),
        ((), 1, []),
    ],
)
def test_each_rung_is_validated_once(rungs: tuple[TrainUnit, ...], aggregation: int, validated_at: list[int]) -> None:
    schedule = Schedule(
        max_length=Batch(20), reporting_period=Batch(100), rungs=Rungs(rungs), aggregation_frequency=aggregation
    )
    position = Position(epoch_length=4, records_per_batch=10)
    validated, next_event = [], 0
    while position.batches < 20:
        if position.batches >= next_event:
            next_event = schedule.next_event(position)
        position.advance()
        # The loop asks only at these batches.
        if position.batches >= next_event and schedule.has_validation(position):
            validated.append(position.batches)
    assert validated == validated_at


@pytest.mark.parametrize(
    ("policy", "is_best", "wanted"),
    [("best", True, True), ("best", False, False), ("all", False, True), ("none", True, False)],
)
def test_checkpoint_policy(policy: str, is_best: bool, wanted: bool) -> None:
    schedule = Schedule(max_length=Epoch(1), reporting_period=Batch(1), checkpoint_policy=policy)
    assert schedule.wants_checkpoint_of(is_best) is wanted


@pytest.mark.parametrize(("smaller_is_better", "best_at"), [(True, [0, 1, 4]), (False, [0, 2])])
def test_best_validation(smaller_is_better: bool, best_at: list[int]) -> None:
    best = BestMetric("error", smaller_is_better)
    values = [2.0, 1.0, 3.0, 1.0, 0.5]
    assert [at for at, value in enumerate(values) if best.beats({"error": value})] == best_at


def test_without_a_metric_every_validation_is_best() -> None:
    best = BestMetric(None)
    assert best.beats({"error": 1.0})
    assert best.beats({"error": 2.0})


def test_ranks_look_seldom_when_batches_are_short() -> None:
    pace = Pace(seconds=0.25)
    looks = []
    for batch in range(1, 2001):
        if batch >= pace.next_look:
            looks.append(batch)
            pace.agree(batch, pace.suggest(pace.distance, pace.distance * 0.001))
    assert looks[:6] == [1, 3, 7, 15, 31, 63]
    assert looks[-1] - looks[-2] == 250


@pytest.mark.parametrize("is_asked", [False, True])
def test_ranks_look_soon_after_a_rung(is_asked: bool) -> None:
    pace = Pace(seconds=0.5, distance=500, next_look=1500)
    pace.hurry(1100, is_asked=is_asked)
    looks = []
    for batch in range(1101, 1200):
        if batch >= pace.next_look:
            looks.append(batch)
            # The answer to a check of before the rung has the suggestions of then.
            pace.agree(
                batch, 500 if is_asked and len(looks) == 1 else pace.suggest(pace.distance, pace.distance * 0.001)
            )
    assert looks == ([1101, 1102, 1104, 1108, 1116, 1132, 1164] if is_asked else [1101, 1103, 1107, 1115, 1131, 1163])


def test_ranks_look_after_every_batch_when_batches_are_long() -> None:
    pace = Pace(seconds=0.25, distance=64)
    assert pace.suggest(64, 64 * 2.0) == 1


@given(
    epoch_length=st.integers(1, 12),
    periods=st.lists(
        st.one_of(
            st.builds(Batch, st.integers(1, 9)),
            st.builds(Epoch, st.integers(1, 3)),
            st.builds(Record, st.integers(1, 40)),
            st.builds(Batch, st.frozensets(st.integers(1, 30))),
        ),
        min_size=3,
        max_size=3,
    ),
    length=st.one_of(st.builds(Batch, st.integers(1, 40)), st.builds(Epoch, st.integers(1, 4))),
    frequency=st.integers(1, 5),
    rungs=st.lists(st.builds(Record, st.integers(1, 60)) | st.builds(Batch, st.integers(1, 20)), max_size=3),
)
def test_nothing_is_due_before_the_next_event(
    epoch_length: int, periods: list[TrainUnit], length: TrainUnit, frequency: int, rungs: list[TrainUnit]
) -> None:
    schedule = Schedule(
        length, periods[0], periods[1], periods[2], aggregation_frequency=frequency, rungs=Rungs(tuple(rungs))
    )
    position = Position(epoch_length, records_per_batch=4)
    while not schedule.is_over(position):
        event = schedule.next_event(position)
        assert event > position.batches
        while position.batches < event - 1:
            position.advance()
            assert not schedule.is_over(position)
            assert not schedule.has_report(position)
            assert not schedule.has_validation(position)
            assert not schedule.has_checkpoint(position)
        position.advance()


@given(
    epoch_length=st.integers(1, 12),
    period=st.one_of(
        st.builds(Batch, st.integers(1, 9)),
        st.builds(Epoch, st.integers(1, 3)),
        st.builds(Record, st.integers(1, 40)),
        st.builds(Batch, st.frozensets(st.integers(1, 30))),
    ),
    frequency=st.integers(1, 5),
)
def test_what_is_due_between_two_steps_comes_with_the_later_one(
    epoch_length: int, period: TrainUnit, frequency: int
) -> None:
    schedule = Schedule(Batch(40), Batch(100), period, period, aggregation_frequency=frequency)
    position = Position(epoch_length, records_per_batch=4)
    expected, due = set(), set()
    for _ in range(10 * frequency):
        position.advance()
        if period.is_due(position):
            expected.add(-(-position.batches // frequency) * frequency)
        if schedule.has_validation(position):
            due.add(position.batches)
        assert schedule.has_checkpoint(position) == schedule.has_validation(position)
    assert due == expected


def test_reports_do_not_wait_for_a_step() -> None:
    schedule = Schedule(Batch(40), Batch(3), Batch(3), aggregation_frequency=4)
    position = Position(epoch_length=5, records_per_batch=4, batches=3)
    assert schedule.has_report(position)
    assert not schedule.has_validation(position)
