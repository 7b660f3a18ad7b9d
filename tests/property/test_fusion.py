"""Invariants of the fusion tuner's decisions for any model, link and noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from gangline.domain.fusion import FusionRecord
from gangline.pytorch.fusion.bucket_partition import (
    Partition,
    caps_of,
    merge_pairs,
    partition_by_caps,
    partition_by_ends,
    split_halves,
    split_last,
)
from gangline.pytorch.fusion.budget import TURN_STEPS, budget_of
from gangline.pytorch.fusion.candidate import Model, choose, propose, refine
from gangline.pytorch.fusion.cost import LinkCost, LinkSample, fit_link
from gangline.pytorch.fusion.race import DEFAULT, Race
from gangline.pytorch.fusion.simulation import Gradients, end_of_exchange, find_optimum, monotone
from gangline.pytorch.fusion.situation import Situation, recall

_sizes = st.lists(st.integers(1, 8 << 20), min_size=1, max_size=40)
_links = st.builds(LinkCost, st.floats(1e-5, 0.05), st.floats(1e6, 1e11))
_seconds = st.one_of(st.floats(0.01, 10.0), st.just(math.nan))


@st.composite
def _gradients(draw: st.DrawFn, most: int = 40) -> Gradients:
    sizes = draw(st.lists(st.integers(1, 8 << 20), min_size=1, max_size=most))
    ready = draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes)))
    return Gradients(tuple(sizes), monotone(ready), wire_ratio=draw(st.sampled_from([1.0, 0.5])))


def _all_partitions(count: int) -> Iterator[Partition]:
    for num_cuts in range(count):
        for cuts in combinations(range(1, count), num_cuts):
            yield partition_by_ends([*cuts, count])


def _places(partition: Partition) -> list[int]:
    return [place for bucket in partition for place in bucket]


@given(_sizes, st.lists(st.integers(1, 16 << 20), min_size=1, max_size=5), st.integers(1, 3))
def test_every_gradient_is_in_one_bucket_of_its_kind(sizes: list[int], caps: list[int], num_kinds: int) -> None:
    kinds = [place % num_kinds for place in range(len(sizes))]
    partition = partition_by_caps(sizes, caps, kinds)
    assert sorted(_places(partition)) == list(range(len(sizes)))
    assert all(len({kinds[place] for place in bucket}) == 1 for bucket in partition)


@given(_sizes, st.integers(1, 16 << 20))
def test_exact_caps_give_the_same_partition_again(sizes: list[int], cap: int) -> None:
    partition = partition_by_caps(sizes, (cap,))
    for variant in (
        partition,
        merge_pairs(partition),
        split_halves(sizes, partition),
        split_last(sizes, partition, 1000),
    ):
        assert _places(variant) == list(range(len(sizes)))
        assert partition_by_caps(sizes, caps_of(sizes, variant)) == variant


@given(_gradients(most=9), _links)
def test_no_division_ends_sooner_over_one_channel_than_the_optimum(gradients: Gradients, link: LinkCost) -> None:
    least_seconds = min(
        end_of_exchange(gradients, partition, link, 1) for partition in _all_partitions(len(gradients.num_bytes))
    )
    optimum_seconds = end_of_exchange(gradients, find_optimum(gradients, link), link, 1)
    assert math.isclose(optimum_seconds, least_seconds, rel_tol=1e-9)


@given(st.integers(321, 2000), _links)
def test_optimum_of_many_gradients_is_a_division(count: int, link: LinkCost) -> None:
    gradients = Gradients((1000,) * count, tuple(place / count for place in range(count)))
    assert _places(find_optimum(gradients, link)) == list(range(count))


@given(_gradients(), _links, st.integers(1, 2), st.integers(1, 16 << 20))
def test_exchange_ends_no_sooner_than_link_and_backward_allow(
    gradients: Gradients, link: LinkCost, channels: int, cap: int
) -> None:
    partition = partition_by_caps(gradients.num_bytes, (cap,))
    end = end_of_exchange(gradients, partition, link, channels)
    on_wire = gradients.wire_ratio * gradients.total_bytes / link.bytes_per_second
    assert end >= max(on_wire, gradients.ready_seconds[-1]) + link.alpha_seconds - 1e-9
    assert end <= end_of_exchange(gradients, partition, link, 1) + 1e-9


@given(_links)
def test_line_through_exact_samples_is_the_link(link: LinkCost) -> None:
    fitted = fit_link([LinkSample(size, link.seconds(size)) for size in (4096, 1 << 18, 1 << 20, 1 << 22)])
    assert fitted is not None
    assert math.isclose(fitted.seconds(4096), link.seconds(4096), rel_tol=1e-3)
    assert math.isclose(fitted.seconds(1 << 22), link.seconds(1 << 22), rel_tol=1e-3)


@given(st.lists(st.tuples(st.sampled_from([4096, 1 << 18, 1 << 20]), _seconds), max_size=12))
def test_any_samples_give_a_usable_line_or_none(samples: list[tuple[int, float]]) -> None:
    link = fit_link([LinkSample(size, seconds) for size, seconds in samples])
    assert link is None or (link.alpha_seconds > 0 and link.bytes_per_second > 0)


@st.composite
def _models(draw: st.DrawFn) -> Model:
    return Model(
        gradients=draw(_gradients()),
        link=draw(_links),
        channels=draw(st.integers(1, 2)),
        default_seconds=draw(st.floats(0.01, 5)),
        keeps_first_buckets=draw(st.booleans()),
        has_cap_list=draw(st.booleans()),
    )


@given(_models(), st.integers(0, 3))
def test_candidates_are_distinct_and_none_is_the_default(model: Model, count: int) -> None:
    proposals = propose(model, [(3 << 20,)])
    chosen = choose(model, proposals, count)
    partitions = [candidate.partition for candidate in [model.default(), *proposals]]
    assert len(set(partitions)) == len(partitions)
    assert len(chosen) <= count
    assert len({candidate.partition for candidate in chosen}) == len(chosen)
    assert all(candidate.expected_seconds <= 1.5 * model.default_seconds for candidate in chosen)
    if chosen:
        assert chosen[0] == proposals[0]
        neighbour = refine(model, chosen[0], chosen[-1])
        assert neighbour is None or neighbour.partition not in (chosen[0].partition, model.default().partition)


@given(_models())
def test_caps_of_a_candidate_give_its_partition(model: Model) -> None:
    """In the order of production, or where the wrapper keeps its first buckets, in that of the parameters."""
    assume(model.has_cap_list)
    sizes = model.gradients.num_bytes
    for candidate in propose(model):
        if model.keeps_first_buckets:
            backwards = partition_by_caps(sizes[::-1], candidate.caps[::-1])
            assert [len(bucket) for bucket in backwards][::-1] == [len(bucket) for bucket in candidate.partition]
        else:
            assert partition_by_caps(sizes, candidate.caps) == candidate.partition


@given(_models())
def test_without_a_list_of_caps_one_cap_is_all_there_is(model: Model) -> None:
    assume(not model.has_cap_list and not model.keeps_first_buckets)
    assert all(len(candidate.caps) == 1 for candidate in propose(model, [(1 << 20, 2 << 20)]))


def _play(race: Race, rng: Random, data: st.DataObject) -> None:
    while not race.is_over:
        race.take({arm: data.draw(st.lists(_seconds, min_size=2, max_size=2)) for arm in race.order(rng)})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(0, 60), st.data())
def test_race_ends_within_its_steps_and_never_takes_what_its_pairs_do_not_prove(
    num_buckets: list[int], steps: int, data: st.DataObject
) -> None:
    race = Race(num_buckets, TURN_STEPS, steps)
    _play(race, Random(1), data)
    assert race.steps_used <= steps
    assert race.num_rounds <= 5
    winner = race.winner()
    assert winner in race.live
    if winner != DEFAULT:
        assert len(race.ratios(winner)) >= 3
        assert statistics.median(race.ratios(winner)) <= 0.98


@given(st.integers(1, 4), st.data())
def test_missing_time_never_wins(num_arms: int, data: st.DataObject) -> None:
    race = Race([1] * (num_arms + 1), TURN_STEPS, 60)
    while not race.is_over:
        seconds = {arm: [math.nan] * 2 for arm in race.live if arm != DEFAULT}
        race.take({DEFAULT: data.draw(st.lists(_seconds, min_size=2, max_size=2)), **seconds})
    assert race.winner() == DEFAULT


@given(st.integers(2, 4), st.lists(st.floats(0.1, 1.0), min_size=40, max_size=40), st.integers(0, 9))
def test_ranks_with_the_same_times_take_the_same_course(num_arms: int, times: list[float], seed: int) -> None:
    outcomes = []
    for _ in range(2):
        race, rng, left = Race([2] * num_arms, TURN_STEPS, 60), Random(f"key/{seed}"), iter(times)
        orders = []
        while not race.is_over:
            orders.append(race.order(rng))
            race.take({arm: [next(left), next(left)] for arm in orders[-1]})
        outcomes.append((orders, race.winner()))
    assert outcomes[0] == outcomes[1]


@given(st.integers(-5, 10**7))
def test_budget_leaves_two_rounds_to_every_challenger_it_allows(steps_left: int) -> None:
    budget = budget_of(steps_left)
    assert 0 <= budget.steps <= 40
    assert budget.is_open == (steps_left >= 400)
    assert budget.steps <= max(0, 0.05 * steps_left)
    if budget.is_open:
        assert 2 * (budget.num_challengers + 1) * TURN_STEPS <= budget.race_steps


@given(_links, st.floats(0.6, 1.6), st.floats(0.7, 1.4))
def test_record_is_recalled_on_a_like_link_and_batch(link: LinkCost, factor: float, batch_factor: float) -> None:
    situation = Situation(((10, "float32", True),), 2, 1, "CPU", "", "gloo", "2.13.0", "", 100, link)
    record = _record(situation, total_bytes=40)
    felt = LinkCost(link.alpha_seconds * factor, link.bytes_per_second / factor)
    alike = replace(situation, batch_size=round(100 * batch_factor), link=felt)
    assert recall(alike, [record], now=5.0).exact == record


def _record(situation: Situation, total_bytes: int) -> FusionRecord:
    assert situation.link is not None
    return FusionRecord(
        key=situation.key,
        bucket_bytes=(20, 20),
        alpha_seconds=situation.link.alpha_seconds,
        bytes_per_second=situation.link.bytes_per_second,
        batch_size=situation.batch_size,
        flags=situation.flags,
        total_bytes=total_bytes,
        created_at=1.0,
    )
