"""The pure parts of benchmarks.split, and its counts, which need no quiet machine."""

from __future__ import annotations

import pytest

from benchmarks.split import all_counts, compare_parameters, equal_counts, slowest


def test_every_cut_is_there_once() -> None:
    assert sorted(all_counts(4, 2)) == [(1, 3), (2, 2), (3, 1)]
    assert len(set(all_counts(7, 3))) == 15
    assert all(sum(counts) == 7 for counts in all_counts(7, 3))


def test_the_peer_has_equally_many_units_in_each_stage() -> None:
    assert equal_counts(6, 4) == [2, 2, 1, 1]
    assert equal_counts(10, 4) == [3, 3, 2, 2]


def test_the_slowest_stage_of_a_cut() -> None:
    seconds = {(0, 1): 5.0, (1, 3): 3.0, (0, 2): 6.0, (2, 3): 1.0}
    assert slowest([1, 2], seconds) == 5.0
    assert slowest([2, 1], seconds) == 6.0


def test_stages_by_parameters_are_within_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_parameters()
    assert "8 blocks in 4 stages" in capsys.readouterr().out
