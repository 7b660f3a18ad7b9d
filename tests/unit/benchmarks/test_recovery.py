"""The figures that the recovery benchmark reads from the ranks' own records."""

from __future__ import annotations

from pathlib import Path

from benchmarks.recovery import Recovery, Step, find_recovery, load_steps

OLD = [Step(10, 104, 99.8), Step(10, 105, 99.9)]


def test_recovery_ends_when_the_last_rank_has_stepped() -> None:
    steps = [[*OLD, Step(20, 101, 101.5), Step(20, 102, 101.6)], [Step(11, 105, 99.9), Step(21, 101, 101.75)]]
    assert find_recovery(steps, [10, 11], killed_at=100.0) == Recovery(1.75, repeated=5)


def test_step_of_a_process_that_outlived_the_kill_is_none_of_the_recovery() -> None:
    steps = [[*OLD, Step(10, 106, 100.1)], [Step(11, 105, 99.9), Step(21, 101, 101.0)]]
    assert find_recovery(steps, [10, 11], killed_at=100.0) == Recovery(None)
    steps[0].append(Step(20, 101, 101.2))
    recovery = find_recovery(steps, [10, 11], killed_at=100.0)
    assert recovery.seconds is not None
    assert round(recovery.seconds, 6) == 1.2
    assert recovery.repeated == 6


def test_line_that_is_not_whole_yet_is_left(tmp_path: Path) -> None:
    (tmp_path / "rank_0.jsonl").write_text('{"pid": 1, "batches": 1, "at": 2.5}\n{"pid": 1, "bat')
    assert load_steps(tmp_path, 2) == [[Step(1, 1, 2.5)], []]
