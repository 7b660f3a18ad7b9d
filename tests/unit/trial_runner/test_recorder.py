"""Each line has its level. Lost records are reported in the trial's log, as soon as the disk can be written."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from gangline.v1 import ingest_pb2, types_pb2
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.spool import Spool


def _texts(spool: Spool) -> list[str]:
    return [record.log.text for record in spool.read(0, max_records=1000)]


def test_a_disk_that_refused_records_is_told_once_it_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    recorder = Recorder(spool, "a1")
    recorder.note("before")

    def refuse(_fd: int, _content: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("services.trial_runner.delivery.spool.os.write", refuse)
        recorder.note("one")
        recorder.record_lines(0, "stdout", ["two", "three"])
    recorder.note("after")
    recorder.note("later")
    lost = "3 records of this trial's log and metrics are lost: the disk of agent a1 refused 3"
    assert _texts(spool) == ["before", "after", lost, "later"]


def test_a_full_spool_is_told_with_how_many_made_room(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=2000, segment_bytes=500)
    recorder = Recorder(spool, "a1")
    for number in range(60):
        recorder.note(f"line {number}")
    told = [text for text in _texts(spool) if "older ones made room in a full spool" in text]
    assert told
    assert all("refused" not in text for text in told)


def test_each_line_has_a_level(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    recorder = Recorder(spool, "a1")
    recorder.note("ready")
    recorder.warn("left out")
    recorder.record_lines(0, "stdout", ["loss 0.5", "ERROR:root:failed"])
    recorder.record_lines(1, "stdout", ["  of another rank"])
    recorder.record_lines(0, "stdout", ["  why it failed"])
    recorder.record_lines(0, "stderr", ["loss 0.5"])
    recorder.record_stacks(0, "", "", ["main()"])
    names = [types_pb2.LogLevel.Name(record.log.level) for record in spool.read(0, max_records=1000)]
    levels = [name.removeprefix("LOG_LEVEL_") for name in names]
    assert levels == ["INFO", "WARNING", "INFO", "ERROR", "INFO", "ERROR", "WARNING", "ERROR", "ERROR", "ERROR"]


def test_a_report_has_the_time_at_which_its_rank_made_it_if_that_can_be_true(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    recorder = Recorder(spool, "a1")
    begin = time.time()
    for at in (begin - 1.5, begin - 7200, begin + 100, 0.0, math.nan, math.inf):
        recorder.record_metrics(ingest_pb2.MetricsPoint(group="training", batches_completed=1), at)
    recorder.record_progress(1, 2, 3.0, begin - 2.5)
    end = time.time()
    first, *others, progress = [record.at for record in spool.read(0, max_records=1000)]
    assert (first, progress) == (begin - 1.5, begin - 2.5)
    assert all(begin <= at <= end for at in others)
