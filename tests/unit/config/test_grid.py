"""The points of a grid: how many, which, in which order."""

from __future__ import annotations

from gangline.config.hyperparameter import Grid, find_uncounted


def _points(**values: object) -> list[dict[str, object]]:
    grid = Grid(values)
    return [grid.point(number) for number in range(1, grid.num_points + 1)]


def test_the_last_hyperparameter_changes_fastest_and_nesting_stays() -> None:
    points = _points(
        batch=64,
        net={"depth": {"type": "int", "minval": 1, "maxval": 2, "count": 2}, "kind": "cnn"},
        lr={"type": "log", "minval": -2, "maxval": -1, "count": 2},
    )
    assert points == [
        {"batch": 64, "net": {"depth": depth, "kind": "cnn"}, "lr": lr} for depth in (1, 2) for lr in (0.01, 0.1)
    ]
    assert list(points[0]) == ["batch", "net", "lr"]
    assert points[0]["net"] is not points[1]["net"]


def test_a_range_is_spread_evenly_with_both_ends() -> None:
    quarters = _points(x={"type": "double", "minval": 0, "maxval": 1, "count": 5})
    assert [p["x"] for p in quarters] == [0, 0.25, 0.5, 0.75, 1]
    assert [p["x"] for p in _points(x={"type": "int", "minval": 1, "maxval": 10, "count": 3})] == [1, 6, 10]
    assert [p["x"] for p in _points(x={"type": "double", "minval": 0, "maxval": 1, "count": 1})] == [0.5]


def test_whole_numbers_come_once_however_many_are_asked_for() -> None:
    assert [p["x"] for p in _points(x={"type": "int", "minval": 1, "maxval": 3, "count": 9})] == [1, 2, 3]


def test_all_values_of_a_list_are_points() -> None:
    assert [p["x"] for p in _points(x={"type": "categorical", "vals": ["a", [1], {"k": 2}]})] == ["a", [1], {"k": 2}]


def test_no_ranges_make_one_point() -> None:
    assert _points(x=1, y={}) == [{"x": 1, "y": {}}]


def test_what_has_no_count_is_named() -> None:
    counted = {"type": "int", "minval": 1, "maxval": 3, "count": 2}
    assert find_uncounted({"a": counted, "b": {"type": "categorical", "vals": [1]}}) is None
    assert find_uncounted({"a": counted, "n": {"x": {"type": "double", "minval": 0, "maxval": 1}}}) == ("n", "x")
