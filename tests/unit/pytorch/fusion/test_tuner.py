"""The course of tuning, on ranks that are threads and steps that take as long as a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from gangline.core import DistributedContext
from gangline.pytorch.fusion import probe
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, partition_by_caps
from gangline.pytorch.fusion.cost import LinkCost
from gangline.pytorch.fusion.situation import Recall
from tests.support.fusion import LINK, NEVER, NUM_TENSORS, TENSOR_BYTES, ScriptedTrial, record
from tests.support.world import in_ranks

T = TypeVar("T")
_FOUR = (4 * TENSOR_BYTES,)


@pytest.fixture(autouse=True)
def _link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure_link", lambda *arguments: LINK)


def _on_two_ranks(play: Callable[[ScriptedTrial], T], **options: object) -> list[T]:
    return in_ranks(2, lambda distributed: play(ScriptedTrial(distributed, **options)))  # type: ignore[arg-type]  # by name


def test_faster_buckets_are_found_within_forty_steps_and_remembered() -> None:
    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train_until_decided()
        return trial

    chief, peer = _on_two_ranks(play)
    tuned = chief.tuner.record
    assert tuned is not None
    assert not tuned.is_default
    assert chief.num_steps == peer.num_steps <= 40
    assert chief.model.applied == peer.model.applied
    assert chief.model.caps == tuned.bucket_bytes
    assert tuned.gain_ratio == pytest.approx(2.0 / 1.5)
    assert [kept.key for kept in chief.memory.kept] == [tuned.key]
    assert peer.memory.kept == []
    assert [recalled for _, _, recalled in chief.told] == [False]


def test_default_is_kept_when_nothing_is_faster_by_two_percent() -> None:
    def seconds(caps: tuple[int, ...]) -> float:
        return 2.0 if caps == DEFAULT_CAPS else 1.98

    chief, peer = _on_two_ranks(_decided, seconds_of=seconds)
    assert chief.tuner.record is not None
    assert chief.tuner.record.is_default
    assert chief.model.caps == peer.model.caps == DEFAULT_CAPS
    assert [kept.is_default for kept in chief.memory.kept] == [True]


def _decided(trial: ScriptedTrial) -> ScriptedTrial:
    trial.train_until_decided()
    return trial


def test_no_race_is_run_where_exchanges_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure_link", lambda *arguments: LinkCost(1e-6, 1e12))
    chief, _ = _on_two_ranks(_decided)
    assert chief.num_steps == 6
    assert chief.tuner.record is not None
    assert chief.tuner.record.is_default


def test_times_of_the_slowest_rank_decide() -> None:
    """One rank alone sees a gain; for the other all buckets are equal."""

    def play(distributed: DistributedContext) -> ScriptedTrial:
        fast = 1.0 if distributed.is_chief else 2.0
        trial = ScriptedTrial(distributed, lambda caps: 2.0 if caps == DEFAULT_CAPS else fast)
        return _decided(trial)

    chief, peer = in_ranks(2, play)
    assert chief.tuner.record is not None
    assert chief.tuner.record.is_default
    assert chief.model.applied == peer.model.applied


def test_missing_times_of_one_rank_keep_the_default() -> None:
    def play(distributed: DistributedContext) -> ScriptedTrial:
        fast = 1.0 if distributed.is_chief else NEVER
        return _decided(ScriptedTrial(distributed, lambda caps: 2.0 if caps == DEFAULT_CAPS else fast))

    chief, peer = in_ranks(2, play)
    assert chief.model.caps == peer.model.caps == DEFAULT_CAPS


@pytest.mark.parametrize("order", [list(range(NUM_TENSORS)), [0] * NUM_TENSORS])
def test_ranks_that_see_another_order_are_not_tuned(order: list[int], caplog: pytest.LogCaptureFixture) -> None:
    def play(distributed: DistributedContext) -> ScriptedTrial:
        trial = ScriptedTrial(distributed, order=None if distributed.is_chief else order)
        trial.train(60)
        return trial

    trials = in_ranks(2, play)
    assert [trial.tuner.record for trial in trials] == [None, None]
    assert [trial.model.caps for trial in trials] == [DEFAULT_CAPS] * 2
    assert all(trial.meter.is_closed for trial in trials)
    assert caplog.text.count("fusion: not tuned: gradients do not come") == 1


def test_short_trial_only_recalls() -> None:
    chief, _ = _on_two_ranks(lambda trial: _trained(trial, 399), steps_left=399)
    assert chief.model.applied == []
    recalled, _ = _on_two_ranks(lambda trial: _trained(trial, 399), steps_left=399, recall=Recall(record()))
    assert recalled.model.applied == [_FOUR]


def _trained(trial: ScriptedTrial, steps: int) -> ScriptedTrial:
    trial.train(steps)
    return trial


def test_recalled_buckets_are_there_before_the_first_step_and_compared_once() -> None:
    chief, peer = _on_two_ranks(lambda trial: _trained(trial, 300), recall=Recall(record()))
    assert chief.model.applied[0] == _FOUR
    assert sorted(chief.model.applied[1:3]) == sorted([_FOUR, DEFAULT_CAPS])
    assert chief.model.applied[3:] == [_FOUR]
    assert peer.model.applied == chief.model.applied
    assert chief.told == [(record(), 4, True)]
    assert chief.memory.kept == []


def test_recalled_buckets_that_are_slower_here_are_forgotten_and_tuned_anew() -> None:
    def seconds(caps: tuple[int, ...]) -> float:
        return 2.0 if caps == DEFAULT_CAPS else 2.2 if caps == _FOUR else 1.5

    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train(100)
        return trial

    chief, peer = _on_two_ranks(play, seconds_of=seconds, recall=Recall(record()))
    assert chief.memory.forgotten == [record().key]
    assert peer.memory.forgotten == []
    assert len(chief.memory.kept) == 1
    assert chief.model.caps not in (_FOUR, DEFAULT_CAPS)


def test_recalled_default_is_not_measured() -> None:
    chief, _ = _on_two_ranks(lambda trial: _trained(trial, 100), recall=Recall(record(bucket_bytes=())))
    assert chief.model.applied == []
    assert [recalled for _, _, recalled in chief.told] == [True]


def test_record_of_a_related_trial_takes_part_in_the_race() -> None:
    odd = (5 * TENSOR_BYTES, 3 * TENSOR_BYTES)

    def seconds(caps: tuple[int, ...]) -> float:
        return 2.0 if caps == DEFAULT_CAPS else 1.2 if caps == odd else 1.5

    chief, _ = _on_two_ranks(_decided, seconds_of=seconds, recall=Recall(None, (record(bucket_bytes=odd),)))
    assert chief.model.caps == odd


def test_lasting_change_of_the_exchange_tunes_again() -> None:
    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train_until_decided()
        trial.train(2100)
        trial.meter.exposed *= 2
        trial.train(300)
        return trial

    chief, peer = _on_two_ranks(play)
    assert len(chief.memory.kept) == 2
    assert chief.model.applied == peer.model.applied


def test_steps_that_rest_say_nothing_of_the_exchange() -> None:
    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train_until_decided()
        trial.train(2165)
        trial.tuner.rest(35)
        trial.meter.exposed *= 100
        trial.train(35)
        trial.meter.exposed /= 100
        trial.train(300)
        return trial

    chief, _ = _on_two_ranks(play)
    assert len(chief.memory.kept) == 1


def test_a_race_goes_on_after_a_rest_with_the_buckets_in_place() -> None:
    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train(12)
        applied = list(trial.model.applied)
        trial.tuner.rest(20)
        trial.train(20)
        assert applied
        assert trial.model.applied == applied
        trial.train_until_decided()
        return trial

    rested, _ = _on_two_ranks(play)
    usual, _ = _on_two_ranks(_decided)
    assert rested.num_steps == usual.num_steps + 20
    assert rested.model.applied == usual.model.applied


def test_a_second_rest_does_not_shorten_the_first() -> None:
    def play(trial: ScriptedTrial) -> ScriptedTrial:
        trial.train(12)
        applied = list(trial.model.applied)
        trial.tuner.rest(20)
        trial.train(3)
        trial.tuner.rest(2)
        trial.train(17)
        assert trial.model.applied == applied
        trial.train_until_decided()
        return trial

    rested, _ = _on_two_ranks(play)
    usual, _ = _on_two_ranks(_decided)
    assert rested.num_steps == usual.num_steps + 20


def test_rare_exchange_needs_a_larger_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measure_link", lambda *arguments: LinkCost(0.0005, 2.7e8))
    chief, _ = _on_two_ranks(_decided, aggregation_frequency=1)
    assert chief.num_steps > 6
    rare, _ = _on_two_ranks(_decided, aggregation_frequency=8)
    assert rare.num_steps == 6


def test_winner_that_nobody_expected_is_raced_against_a_neighbour() -> None:
    """Many buckets are expected to be best; here each of them costs."""

    def count(caps: tuple[int, ...]) -> int:
        return len(partition_by_caps([TENSOR_BYTES] * NUM_TENSORS, caps))

    def seconds(caps: tuple[int, ...]) -> float:
        return 3.0 if caps == DEFAULT_CAPS else 1.0 + 0.05 * count(caps)

    chief, peer = _on_two_ranks(_decided, seconds_of=seconds)
    assert 24 < chief.num_steps <= 40
    assert chief.model.applied == peer.model.applied
    challengers = {caps for caps in chief.model.applied[:4] if caps != DEFAULT_CAPS}
    assert len(challengers) == 3
    assert count(chief.model.caps) < min(count(caps) for caps in challengers)
