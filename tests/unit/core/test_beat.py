"""A rank's beat file: the runner reads the same values that the rank writes."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gangline.core import beat
from gangline.core.beat import (
    BACKWARD,
    BUILD,
    CALLBACK,
    DATA,
    EXCHANGE,
    FORWARD,
    OPTIMIZER,
    TRAIN_BATCH,
    VALIDATION,
    FileBeat,
    NoBeat,
    open_beat,
)
from gangline.core.distributed import BACKGROUND_GROUP, count_collectives
from gangline.core.draft import CheckpointDraft
from gangline.core.storage_access.storage import CheckpointStore
from gangline.domain.beat import BREAK, UNKNOWN, Collectives, Phase, Reading, Where
from gangline.launch.beat_file import BEAT_KEY, BeatFile, stack_signal
from tests.support.work import calls_of


def _both(folder: Path, *, watches_scripts: bool = False) -> tuple[BeatFile, FileBeat]:
    file = BeatFile(folder / "rank0")
    return file, FileBeat(str(file.path), watches_scripts=watches_scripts)


def test_nobody_has_opened_it_yet(tmp_path: Path) -> None:
    reading = BeatFile(tmp_path / "rank0").read()
    assert (reading.pid, reading.phase, reading.place) == (0, Phase.OUTSIDE, None)


def test_a_training_from_its_begin_to_its_end(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    seen = [file.read()]
    beats: list[Callable[[], None]] = [partial(rank.begin, 4), rank.tick, partial(rank.step, 5)]
    beats += [rank.tick, partial(rank.rest, CALLBACK), rank.tick, rank.end]
    for beat_once in beats:
        beat_once()
        seen.append(file.read())
    pid = os.getpid()
    assert seen == [
        Reading(UNKNOWN, 0, Phase.OUTSIDE, pid),
        Reading(4, 0, Phase.STARTING, pid, Where.BETWEEN),
        # Until the first completed batch the limit of a start holds.
        Reading(4, 0, Phase.STARTING, pid, Where.BETWEEN, 1),
        Reading(5, 0, Phase.WATCHED, pid, Where.BETWEEN, 1),
        Reading(5, 0, Phase.WATCHED, pid, Where.BETWEEN, 2),
        Reading(5, 0, Phase.RESTING, pid, Where.CALLBACK, 2),
        Reading(5, 0, Phase.WATCHED, pid, Where.BETWEEN, 3),
        Reading(5, 0, Phase.OUTSIDE, pid, Where.UNKNOWN, 3),
    ]
    assert [reading.place for reading in seen[:2]] == [None, 4]


def test_a_validation_and_a_scripts_calls_are_no_part_of_a_step(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.touch()
    assert file.read().is_broken
    rank.begin(0)
    # The trainer's own question whether to stop.
    rank.touch()
    assert not file.read().is_broken
    rank.enter(VALIDATION)
    rank.leave_step()
    rank.tick()
    assert file.read() == Reading(0, BREAK + 1, Phase.STARTING, os.getpid(), Where.VALIDATION, 2)
    rank.step(1)
    assert not file.read().is_broken


def test_a_beat_of_a_batch_is_two_calls(tmp_path: Path) -> None:
    """So that all beats of a batch of 6 ms stay far below 0.2 % of it."""
    _file, rank = _both(tmp_path)
    rank.begin(0)

    def beat() -> None:
        rank.enter(DATA)
        rank.enter(FORWARD)
        rank.enter(BACKWARD)
        rank.stay(TRAIN_BATCH)
        rank.enter(OPTIMIZER)
        rank.stay(TRAIN_BATCH)
        rank.step(1)

    assert calls_of(beat) <= 2 * 7


def test_collectives_that_a_process_enters_are_counted(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.start(BUILD)
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        background = dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP)
        plain_group = dist.new_group(backend="gloo")
        before = count_collectives()
        for group, number in ((None, 3), (plain_group, 2), (background, 1)):
            for _ in range(number):
                dist.all_reduce(torch.zeros(1), group=group)
        after = count_collectives()
        assert after.world - before.world == 3
        assert after.others - before.others == 2
        assert after.background - before.background == 1
        deadline = time.monotonic() + 10
        while file.read().collectives != after:
            assert time.monotonic() < deadline, file.read()
            time.sleep(0.01)
    finally:
        dist.destroy_process_group()
    assert count_collectives() == Collectives()


def test_two_words_at_the_same_batch_differ(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.step(5)
    before = file.read()
    rank.report(5)
    assert file.read() != before


def test_a_report_of_an_earlier_batch_sets_no_rank_back(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.begin(0)
    rank.step(6)
    before = file.read()
    rank.report(5)
    rank.touch()
    after = file.read()
    assert (after.batches, after.part) == (before.batches, before.part) == (6, 0)
    assert after != before


def test_only_a_rest_waits_for_what_another_thread_writes(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.begin(0)
    rank.step(1)
    rank.pulse()
    assert file.read().life == 0
    rank.rest(CALLBACK)
    store = CheckpointStore(str(tmp_path / "storage"))
    CheckpointDraft(store, "c1", rank.pulse).write("weights", b"12")
    assert (file.read().life, file.read().phase) == (1, Phase.RESTING)


def test_a_rank_says_where_it_is_also_after_a_rest(tmp_path: Path) -> None:
    file, rank = _both(tmp_path)
    rank.start(BUILD)
    assert (file.read().phase, file.read().where) == (Phase.STARTING, Where.BUILD)
    rank.begin(0)
    rank.step(1)
    seen = []
    beats: tuple[Callable[[], None], ...] = (
        *(partial(rank.enter, DATA), partial(rank.enter, FORWARD), partial(rank.rest, CALLBACK), rank.resume),
        *(partial(rank.stay, EXCHANGE), partial(rank.rest, CALLBACK), rank.pulse),
    )
    for beat_once in beats:
        beat_once()
        seen.append((file.read().part, file.read().where, file.read().phase))
    watched, resting = Phase.WATCHED, Phase.RESTING
    assert seen == [
        (1, Where.DATA, watched),
        (2, Where.FORWARD, watched),
        (2, Where.CALLBACK, resting),
        (2, Where.FORWARD, watched),
        (2, Where.EXCHANGE, watched),
        (2, Where.CALLBACK, resting),
        (2, Where.CALLBACK, resting),
    ]


@pytest.mark.parametrize(("watches", "phase"), [(False, Phase.OUTSIDE), (True, Phase.WATCHED)])
def test_a_script_is_watched_where_the_experiment_asks_for_it(tmp_path: Path, watches: bool, phase: Phase) -> None:
    file, rank = _both(tmp_path, watches_scripts=watches)
    rank.touch()
    assert (file.read().phase, file.read().part) == (phase, BREAK + 1)
    rank.report(7)
    assert (file.read().phase, file.read().place) == (phase, 7)


def test_the_signal_dumps_the_stacks_beside_it(tmp_path: Path) -> None:
    file, _rank = _both(tmp_path)
    os.kill(os.getpid(), stack_signal())
    assert "in test_the_signal_dumps_the_stacks_beside_it" in file.stacks_path.read_text()
    assert stack_signal() not in (signal.SIGUSR1, signal.SIGUSR2)


def test_what_a_script_wrote_into_it_breaks_nothing(tmp_path: Path) -> None:
    file, _rank = _both(tmp_path)
    file.path.write_bytes(struct.pack("16q", 1, 2, 99, 4, 99, *range(11)))
    assert replace(file.read(), collectives=Collectives()) == Reading(1, 2, Phase.OUTSIDE, 4)


def test_a_process_without_a_runner_beats_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat, "_current", None)
    monkeypatch.delenv(BEAT_KEY, raising=False)
    assert isinstance(open_beat(), NoBeat)
