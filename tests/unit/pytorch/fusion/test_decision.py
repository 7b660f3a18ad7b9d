"""The tuner's pure parts, one example each; what holds in general is in tests/property/test_fusion.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gangline.domain.fusion import LIFETIME_SECONDS, FusionRecord, family_of, is_fusion_key
from gangline.pytorch.fusion.bandwidth_watch import LEAST_STEPS_BETWEEN, Watch
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, MIB, partition_by_caps
from gangline.pytorch.fusion.candidate import Model, choose, propose
from gangline.pytorch.fusion.cost import LinkCost, LinkSample, fit_link
from gangline.pytorch.fusion.race import Race
from gangline.pytorch.fusion.simulation import Gradients, end_of_exchange, find_optimum
from gangline.pytorch.fusion.situation import recall
from gangline.pytorch.fusion.step_profile import common_order, ready_by_place, reverse_order
from gangline.pytorch.training.fusion_opening import line_of, metrics_of
from tests.support.fusion import LINK, record, situation


def _model(link: LinkCost, seconds: float = 1.0) -> Model:
    """48 tensors of 1 MiB, one every 4 ms."""
    gradients = Gradients((MIB,) * 48, tuple(0.004 * place for place in range(48)))
    return Model(gradients, link, channels=2, default_seconds=seconds)


def test_default_caps_give_torchs_buckets() -> None:
    partition = partition_by_caps([MIB // 2] * 60, DEFAULT_CAPS)
    assert [len(bucket) for bucket in partition] == [2, 50, 8]


def test_large_tensor_is_one_bucket_whatever_the_cap() -> None:
    assert partition_by_caps([100, 40 * MIB, 100], (MIB,)) == ((0, 1), (2,))


def test_slow_link_wants_small_buckets_and_a_far_one_large_ones() -> None:
    near, far = _model(LinkCost(0.0002, 1.2e8)), _model(LinkCost(0.05, 1.2e8))
    best_near, best_far = propose(near)[0], propose(far)[0]
    assert best_near.num_buckets > best_far.num_buckets
    assert best_near.expected_seconds < near.default_seconds


@pytest.mark.parametrize(
    ("link", "last_buckets"), [(LinkCost(0.01, math.inf), (47, 1)), (LinkCost(0.05, 1.2e8), (28, 6))]
)
def test_the_best_is_tried_with_a_small_last_bucket_too(link: LinkCost, last_buckets: tuple[int, int]) -> None:
    """1 MiB where the link's time is not measurable, else the bytes that it sends in the fixed time of an exchange: 6
    MB.
    """
    tried = [tuple(len(bucket) for bucket in candidate.partition[-2:]) for candidate in propose(_model(link))]
    assert last_buckets in tried


def test_challengers_differ_by_half_or_more() -> None:
    model = _model(LinkCost(0.002, 1.2e8))
    counts = sorted(candidate.num_buckets for candidate in choose(model, propose(model), 3))
    assert len(counts) == 3
    assert len(set(counts)) == 3


def test_optimum_sends_early_and_ends_small() -> None:
    gradients = Gradients((MIB,) * 10, tuple(0.01 * place for place in range(10)))
    link = LinkCost(0.001, 1e9)
    optimum = find_optimum(gradients, link)
    assert end_of_exchange(gradients, optimum, link, 1) == pytest.approx(0.09 + link.seconds(MIB))


def test_link_of_nonsense_is_none() -> None:
    assert fit_link([LinkSample(4096, 0.001), LinkSample(4096, 0.002)]) is None
    assert fit_link([LinkSample(4096, math.inf), LinkSample(8192, 0.002)]) is None


def test_link_that_is_not_felt_has_an_infinite_rate() -> None:
    link = fit_link([LinkSample(4096, 0.002), LinkSample(1 << 22, 0.001)])
    assert link is not None
    assert math.isinf(link.bytes_per_second)


def test_one_slow_step_does_not_throw_the_best_arm_out() -> None:
    race = Race([2, 10], turn_steps=3, steps=60)
    race.take({0: [1.0, 1.0], 1: [0.8, 9.0]})
    race.take({0: [1.0, 1.0], 1: [0.8, 0.8]})
    assert race.is_over
    assert race.winner() == 1


def test_equal_challengers_end_the_race_early_with_the_fewer_buckets() -> None:
    race = Race([2, 30, 10], turn_steps=3, steps=60)
    race.take({0: [1.0, 1.0], 1: [0.800, 0.800], 2: [0.805, 0.805]})
    assert race.live == [0, 2]
    race.take({0: [1.0, 1.0], 2: [0.8, 0.8]})
    assert (race.is_over, race.winner(), race.steps_used) == (True, 2, 15)


def test_order_must_be_the_same_in_every_step() -> None:
    assert common_order([[2, 0, 1], [2, 0, 1]], 3) == (2, 0, 1)
    assert common_order([[2, 0, 1], [2, 1, 0]], 3) is None
    assert common_order([[2, 0], [2, 0]], 3) is None
    assert common_order([[2, 0, 1, 2]], 3) is None
    assert reverse_order([[1], [2, 0]], 3) == (2, 1, 0)
    assert reverse_order([[1, 1]], 3) is None
    assert ready_by_place((2, 0, 1), [([2, 0], [0.0, 0.1]), ([2, 0, 1], [0.0, 0.3, 0.5])]) == [0.0, 0.2, 0.25]


def test_record_is_recalled_only_where_it_fits() -> None:
    here = situation(link=LINK)
    assert recall(here, [record()], now=2000.0).exact == record()
    assert recall(here, [record()], now=2000.0 + LIFETIME_SECONDS).exact is None
    assert recall(situation(link=LINK, world_size=4), [record()], now=2000.0) == recall(here, [], now=0.0)
    assert recall(situation(link=LINK, flags="aggregation_frequency=4"), [record()], now=2000.0).related == ()
    assert recall(situation(link=None), [record()], now=2000.0).exact is None
    slower = situation(link=LinkCost(LINK.alpha_seconds, LINK.bytes_per_second / 10))
    assert recall(slower, [record()], now=2000.0).related == (record(),)
    other_batch = recall(situation(link=LINK, batch_size=128), [record()], now=2000.0)
    assert (other_batch.exact, other_batch.related) == (None, (record(),))


def test_links_that_no_step_feels_are_alike() -> None:
    unfelt = record(alpha_seconds=1e-6, bytes_per_second=1e12)
    slower = situation(link=LinkCost(1e-4, 1e10))
    assert recall(slower, [unfelt], now=2000.0).exact == unfelt


def test_newest_of_several_records_is_recalled() -> None:
    newer = replace(record(), created_at=1500.0)
    assert recall(situation(link=LINK), [record(), newer], now=2000.0).exact == newer


def test_neighbours_of_a_class_share_a_family_but_not_a_key() -> None:
    fast, slow = situation(link=LINK), situation(link=LinkCost(LINK.alpha_seconds * 8, LINK.bytes_per_second))
    assert fast.family == slow.family == family_of(fast.key)
    assert fast.key != slow.key
    assert is_fusion_key(fast.key)
    assert not is_fusion_key("../election")


def test_line_says_what_was_found() -> None:
    tuned = record(default_step_seconds=1.24, tuned_step_seconds=1.0, steps=31, total_bytes=39 * MIB, trial_id="7.1")
    assert line_of(tuned, 13, is_recalled=False) == "fusion: 13 buckets of ~3 MiB, 1.24x default, 31 steps"
    recalled = "fusion: 13 buckets of ~3 MiB, 1.24x default, recalled from trial 7.1, which took 31 steps"
    assert line_of(tuned, 13, is_recalled=True) == recalled
    default = FusionRecord("a-b", steps=6, total_bytes=MIB)
    assert line_of(default, 1, is_recalled=False) == "fusion: the default of 1 bucket of ~1 MiB is kept, 6 steps"
    assert metrics_of(tuned, 13, is_recalled=True)["gain_ratio"] == 1.24


@pytest.mark.parametrize("compute", [0.5, 0.0])
def test_watch_is_due_after_a_lasting_change_of_exchanges_alone(compute: float) -> None:
    watch = Watch()
    for _ in range(LEAST_STEPS_BETWEEN):
        watch.update(0.1, compute)
    watch.update(0.9, compute)
    assert not watch.is_due
    for _ in range(60):
        watch.update(0.2, compute)
    assert watch.is_due


@pytest.mark.parametrize(("exposed", "compute"), [(0.2, 1.0), (0.11, 0.5), (math.nan, 0.5)])
def test_watch_is_not_due_when_the_trial_itself_changed_or_little_did(exposed: float, compute: float) -> None:
    watch = Watch()
    for _ in range(LEAST_STEPS_BETWEEN):
        watch.update(0.1, 0.5)
    for _ in range(200):
        watch.update(exposed, compute)
    assert not watch.is_due


def test_the_last_steps_are_for_the_default_and_the_best() -> None:
    """A round of all three would take more steps than are left."""
    race = Race([2, 30, 10], turn_steps=3, steps=15)
    race.take({0: [1.0, 1.0], 1: [0.70, 0.70], 2: [0.75, 0.75]})
    assert (race.live, race.is_over, race.steps_used) == ([0, 1], False, 9)
