"""While it trains, a rank says that it moves on, and when it may take its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.core import DistributedContext, beat
from gangline.domain.beat import Phase, Reading, Where
from gangline.launch.beat_file import BEAT_KEY, BeatFile
from gangline.pytorch.parallel.choice import SingleStrategy
from tests.support.small_trial import SmallTrial, fit

Look = Callable[[str], None]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BeatFile:
    beat_file = BeatFile(tmp_path / "rank0")
    monkeypatch.setattr(beat, "_current", None)
    monkeypatch.setenv(BEAT_KEY, str(beat_file.path))
    return beat_file


class _Callback(pytorch.PyTorchCallback):
    def __init__(self, look: Look) -> None:
        self._look = look

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self._look("validated")

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self._look("reported")

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self._look("saving")


class _Looking(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, look: Look) -> None:
        super().__init__(context)
        self._look = look

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"look": _Callback(self._look)}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self._look("training")
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:  # type: ignore[override]  # without the index, as allowed
        self._look("validating")
        return super().evaluate_batch(batch)


def test_training_is_watched_and_the_users_own_code_is_not(file: BeatFile) -> None:
    seen: list[tuple[str, int, Phase]] = []

    def look(what: str) -> None:
        reading = file.read()
        seen.append((what, reading.batches, reading.phase))

    fit(
        lambda context: _Looking(context, look),
        max_length=pytorch.Batch(3),
        reporting_period=pytorch.Batch(2),
        validation_period=pytorch.Batch(2),
        checkpoint_policy="all",
    )
    watched, resting, starting = Phase.WATCHED, Phase.RESTING, Phase.STARTING
    assert seen == [
        # The first batch of training and of the first validation may compile.
        ("training", 0, starting),
        ("training", 1, watched),
        ("reported", 2, resting),
        ("validating", 2, resting),
        ("validating", 2, watched),
        ("validating", 2, watched),
        ("validated", 2, resting),
        ("saving", 2, resting),
        ("training", 2, watched),
        ("reported", 3, resting),
        ("validating", 3, watched),
        ("validating", 3, watched),
        ("validating", 3, watched),
        ("validated", 3, resting),
        ("saving", 3, resting),
    ]
    assert file.read().phase is Phase.OUTSIDE


def test_each_batch_and_its_backward_pass_are_a_sign_of_life(file: BeatFile) -> None:
    seen: list[Reading] = []
    fit(lambda context: _Looking(context, lambda _: seen.append(file.read())), max_length=pytorch.Batch(4))
    training = [reading for reading in seen if reading.phase is Phase.WATCHED][:3]
    assert [reading.batches for reading in training] == [1, 2, 3]
    # The data loader and the forward pass, and perhaps a look at what the other ranks want.
    assert {reading.part for reading in training} <= {2, 3}
    assert file.read().batches == 4


def test_a_rank_says_where_it_is(file: BeatFile) -> None:
    seen: set[tuple[str, Where]] = set()
    fit(
        lambda context: _Looking(context, lambda what: seen.add((what, file.read().where))),
        max_length=pytorch.Batch(3),
        reporting_period=pytorch.Batch(1),
        validation_period=pytorch.Batch(2),
        checkpoint_policy="all",
    )
    assert seen == {
        ("training", Where.FORWARD),
        ("validating", Where.VALIDATION),
        *((what, Where.CALLBACK) for what in ("reported", "validated", "saving")),
    }


def test_a_report_after_each_batch_sets_the_chief_not_back(file: BeatFile) -> None:
    seen: list[int] = []
    fit(
        lambda context: _Looking(context, lambda what: seen.append(file.read().batches)),
        max_length=pytorch.Batch(40),
        reporting_period=pytorch.Batch(1),
    )
    assert seen == sorted(seen)


def test_a_validation_is_no_part_of_a_step(file: BeatFile) -> None:
    seen: set[tuple[str, bool]] = set()
    fit(
        lambda context: _Looking(context, lambda what: seen.add((what, file.read().is_broken))),
        max_length=pytorch.Batch(4),
        validation_period=pytorch.Batch(4),
    )
    assert {entry for entry in seen if entry[0] in ("training", "validating")} == {
        ("training", False),
        ("validating", True),
    }


def test_an_ordered_trace_may_take_its_time_to_begin_and_to_be_written(
    file: BeatFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Phase]] = []

    def look_at(what: str, method: str) -> None:
        call = getattr(torch.profiler.profile, method)

        def looking(*arguments: Any, **options: Any) -> Any:
            seen.append((what, file.read().phase))
            return call(*arguments, **options)

        monkeypatch.setattr(torch.profiler.profile, method, looking)

    look_at("begins", "start")
    look_at("is written", "export_chrome_trace")

    def make(context: pytorch.PyTorchTrialContext) -> SmallTrial:
        orders = iter([1])
        monkeypatch.setattr(context.core.link, "take_trace", lambda: next(orders, 0))
        return _Looking(context, lambda what: seen.append((what, file.read().phase)))

    fit(make, max_length=pytorch.Batch(5))
    assert [entry for entry in seen if entry[0] in ("begins", "is written")] == [
        ("begins", Phase.RESTING),
        ("is written", Phase.RESTING),
    ]
    assert [phase for what, phase in seen if what == "training"][1:] == [Phase.WATCHED] * 4


def test_a_trial_that_fails_is_watched_no_more_and_says_how_far_it_was(file: BeatFile) -> None:
    class Failing(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ValueError("bad batch")
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(ValueError, match="bad batch"):
        fit(Failing, max_length=pytorch.Batch(4))
    assert (file.read().phase, file.read().place) == (Phase.OUTSIDE, 2)


def test_batches_of_a_rank_with_fewer_of_them_are_progress_too(file: BeatFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first one may compile the model, and the others wait for all of them."""
    monkeypatch.setattr(SingleStrategy, "needs_all_ranks", True)
    monkeypatch.setattr(DistributedContext, "maximum", lambda _, values: [value + 3 for value in values])
    seen: list[tuple[Phase, int]] = []

    def look(what: str) -> None:
        if what == "validating":
            seen.append((file.read().phase, file.read().life))

    fit(lambda context: _Looking(context, look), max_length=pytorch.Batch(1))
    phases, lives = [phase for phase, _ in seen], [life for _, life in seen]
    assert phases[0] is Phase.RESTING
    assert len(seen) > 3
    assert Phase.RESTING not in phases[1:]
    assert lives[:4] == list(range(lives[0], lives[0] + 4))
