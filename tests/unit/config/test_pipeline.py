"""The numbers of a pipeline: which stages, microbatches, schedules and slots fit together."""

from __future__ import annotations

import re
from itertools import product

import pytest

from gangline.config import parse_config
from gangline.config.elastic import sizes_of, smaller_sizes
from gangline.config.parallelism import ranks_per_replica
from gangline.config.pipeline import (
    SCHEDULES,
    batch_conflict,
    bubble_ratio,
    choose_microbatches,
    fewer_microbatches,
    find_schedule,
    microbatch_conflict,
    slot_of_part,
)
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError

TRIAL = """
entrypoint: model:Trial
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
resources: {{slots_per_trial: {slots}, min_slots_per_trial: {fewest}}}
hyperparameters: {{global_batch_size: {batch}}}
parallelism: {{strategy: pipeline, {options}}}
"""


def test_stages_are_the_ranks_of_a_replica() -> None:
    assert ranks_per_replica("pipeline", 8, 2) == 2
    assert ranks_per_replica("pipeline", 8) == 8
    assert ranks_per_replica("zero3", 8) == 1


@pytest.mark.parametrize(
    ("records", "stages", "schedule", "count"),
    [
        (16, 2, "1F1B", 8),
        (8, 2, "1F1B", 8),
        (6, 2, "1F1B", 6),
        (24, 2, "1F1B", 8),
        # No divisor is at least the number of stages, so the schedule cannot run.
        (1, 2, "1F1B", 1),
        (1, 2, "GPipe", 1),
        # 9 is no multiple of 2 stages, so the interleaved schedule takes 6 of 18.
        (18, 2, "Interleaved1F1B", 18),
        (6, 3, "Interleaved1F1B", 6),
    ],
)
def test_number_of_microbatches_divides_the_batch(records: int, stages: int, schedule: str, count: int) -> None:
    assert choose_microbatches(records, stages, schedule) == count


@pytest.mark.parametrize(
    ("records", "stages", "schedule", "count"),
    [
        (4, 2, "1F1B", 4),
        (6, 4, "1F1B", 6),
        # 1F1B has no full round of 3 records on 4 stages.
        (3, 4, "1F1B", 3),
        (12, 4, "GPipe", 6),
        # 5 is no multiple of 2 stages; torch refuses it.
        (5, 2, "Interleaved1F1B", 1),
        (6, 2, "Interleaved1F1B", 6),
        (10, 2, "Interleaved1F1B", 2),
        (6, 4, "Interleaved1F1B", 3),
        (0, 2, "1F1B", 1),
    ],
)
def test_number_of_microbatches_of_a_smaller_batch(records: int, stages: int, schedule: str, count: int) -> None:
    assert fewer_microbatches(records, 8, stages, schedule) == count


@pytest.mark.parametrize(
    ("microbatches", "stages", "schedule", "message"),
    [
        (
            2,
            4,
            "1F1B",
            "1F1B needs at least as many microbatches as stages, but there are 2 for 4 stages; use at least",
        ),
        (
            5,
            4,
            "Interleaved1F1B",
            "Interleaved1F1B needs a multiple of its 4 stages, but there are 5 .*; use a multiple of 4",
        ),
        (2, 4, "GPipe", None),
        (8, 4, "Interleaved1F1B", None),
    ],
)
def test_schedule_refuses_numbers_that_it_cannot_run(
    microbatches: int, stages: int, schedule: str, message: str | None
) -> None:
    text = microbatch_conflict(microbatches, stages, schedule)
    if message is None:
        assert text is None
    else:
        assert text is not None
        with pytest.raises(ValueError, match=message):
            raise ValueError(text)


def test_batch_is_cut_into_equal_parts() -> None:
    assert batch_conflict(16, 8, 2, "1F1B") is None
    text = (
        "a replica's batch of 10 records cannot be cut into 4 equal microbatches; use 2, or a global_batch_size with a "
        "multiple of 4 records for each replica"
    )
    assert batch_conflict(10, 4, 2, "1F1B") == text
    assert batch_conflict(1, None, 2, "GPipe") is None
    conflict = batch_conflict(1, None, 2, "1F1B")
    assert conflict is not None
    assert "a replica's 1 record cannot be cut into the 2 microbatches that 1F1B needs" in conflict
    # 1 divides 9 and is no multiple of 2 stages, so no number of microbatches up to 4 will do.
    assert "microbatches; use a global_batch_size" in str(batch_conflict(9, 4, 2, "Interleaved1F1B"))
    # 3 divides 9, but 4 stages need 4 microbatches.
    assert "microbatches; use 9, or" in str(batch_conflict(9, 4, 4, "1F1B"))
    assert "use 4 for the 64 records of a replica's batch, or schedule: GPipe" in str(batch_conflict(64, 2, 4, "1F1B"))


@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_a_number_of_microbatches_that_is_named_as_the_way_out_is_possible(schedule: str) -> None:
    named = 0
    for records, microbatches, stages in product(range(1, 37), range(1, 13), range(2, 7)):
        text = batch_conflict(records, microbatches, stages, schedule) or ""
        number = re.search(r"use (\d+)(,| for the)", text)
        if number:
            named += 1
            assert batch_conflict(records, int(number[1]), stages, schedule) is None, text
        if " records of a replica's batch, or schedule: " in text:
            assert batch_conflict(records, microbatches, stages, text.rpartition(": ")[2]) is None, text
    assert named


@pytest.mark.parametrize("records", [10**12, 2**61 - 1, 2**63 - 1])
def test_an_enormous_batch_is_judged_at_once(records: int) -> None:
    assert records % choose_microbatches(records, 2) == 0


def test_parts_lie_on_slots_as_the_schedule_wants() -> None:
    assert [slot_of_part(part, 2, "Interleaved1F1B") for part in range(4)] == [0, 1, 0, 1]
    assert [slot_of_part(part, 2, "ZBVZeroBubble") for part in range(4)] == [0, 1, 1, 0]
    assert [slot_of_part(part, 3, "1F1B") for part in range(3)] == [0, 1, 2]


def test_bubble() -> None:
    assert bubble_ratio(2, 8) == pytest.approx(1 / 9)
    assert bubble_ratio(4, 8, "Interleaved1F1B") == pytest.approx(1.5 / 9.5)
    assert bubble_ratio(1, 8) == 0


def test_case_of_a_schedule_does_not_matter() -> None:
    assert [find_schedule(name.lower()) for name in SCHEDULES] == list(SCHEDULES)
    assert find_schedule("1f1") is None


def test_a_smaller_size_has_fewer_replicas_of_the_same_stages() -> None:
    assert smaller_sizes(8, 2, "pipeline", 2) == (4, 2)
    assert smaller_sizes(8, 2, "pipeline", None) == ()
    config, _ = parse_config(TRIAL.format(slots=8, fewest=2, batch=64, options="stages: 2"))
    assert sizes_of(settle_values(config)) == (4, 2)


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (64, "stages: 3", "3 slots, but resources.slots_per_trial is 8, no multiple of that; use 9 slots"),
        (40, "stages: 2, microbatches: 4", "batch of 10 records cannot be cut into 4 equal microbatches; use 2"),
        (4, "stages: 2", "a replica's 1 record cannot be cut into the 2 microbatches that 1F1B needs; use a glob"),
        (64, "split: [a]", "split names 1 module, but 8 stages with 1F1B are 8 parts; name the 7 modules"),
        (2, "stages: 2", "2 is smaller than the 4 replicas of 2 slots of resources.slots_per_trial"),
    ],
)
def test_what_cannot_run_is_refused_at_submit(batch: int, options: str, message: str) -> None:
    with pytest.raises(GanglineError, match=message):
        parse_config(TRIAL.format(slots=8, fewest=8, batch=batch, options=options))


def test_compression_is_refused() -> None:
    text = TRIAL.format(slots=8, fewest=8, batch=64, options="stages: 2")
    with pytest.raises(GanglineError, match="parallelism is pipeline, which exchanges gradients after its last"):
        parse_config(text + "optimizations: {gradient_compression: true}\n")
