"""Lines of workers in the output of the process that has started them."""

from __future__ import annotations

from services.trial_runner.ranks.worker_line import split_by_worker


def test_a_mark_becomes_the_rank_of_the_line() -> None:
    lines = ["[rank=1] a", "[rank=1] b", "plain", "[rank=x] no mark", " [rank=2] neither", "[rank=0] [rank=3] c"]
    assert list(split_by_worker(lines, 4)) == [
        (1, ["a", "b"]),
        (4, ["plain", "[rank=x] no mark", " [rank=2] neither"]),
        (0, ["[rank=3] c"]),
    ]
    assert list(split_by_worker([], 4)) == []
