"""The units, the ranks and the names of a pipeline's parts, before and after a division by time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gangline.pytorch.parallel.staged.unit import Unit
from gangline.pytorch.parallel.staged.unit_division import UnitDivision

UNITS = [Unit((name,), end, 10) for name, end in (("a", "a"), ("b", "b"), ("c", None), ("d", "d"))]


def _division(place: int, counts: list[int], schedule: str = "1F1B") -> UnitDivision:
    replicas: Any = SimpleNamespace(stages=2, place=place)
    return UnitDivision(UNITS, counts, replicas, schedule)


def test_each_unit_is_on_the_rank_of_its_part() -> None:
    division = _division(1, [3, 1])
    assert (division.own, division.has_last, division.last_place) == ([1], True, 1)
    assert division.places_of_units() == [0, 0, 0, 1]
    assert division.part_of_paths() == {"a": 0, "b": 0, "c": 0, "d": 1}
    assert [division.name_of(part) for part in (0, 1)] == ["stage 0 of 2 (a to c)", "stage 1 of 2 (d)"]
    assert [division.range_of(part) for part in (0, 1)] == [(0, 2), (3, 3)]
    division.redivide([1, 3])
    assert (division.counts, division.places_of_units()) == ([1, 3], [0, 1, 1, 1])


def test_a_rank_may_have_the_first_and_the_last_part() -> None:
    division = _division(0, [1, 1, 1, 1], "ZBVZeroBubble")
    assert (division.own, division.place_of, division.has_last) == ([0, 3], [0, 1, 1, 0], True)


def test_an_output_goes_along_from_its_part_to_the_last_that_needs_it() -> None:
    division = _division(0, [1, 1, 1, 1], "ZBVZeroBubble")
    assert division.carried_for([set(), set(), set(), {"a", "b"}]) == [[], ["a"], ["a", "b"], []]
    assert [division.end_of(part) for part in range(4)] == ["a", "b", None, "d"]
