"""Tests which hyperparameters are drawn."""

from __future__ import annotations

from services.scheduler.searcher.draw import is_drawn


def test_a_range_of_another_version_counts_as_drawn() -> None:
    # A leader asks it of every stored experiment when its term begins.
    assert is_drawn({"lr": {"type": "of tomorrow"}})
    assert not is_drawn({"lr": 0.1})
