"""The plan that the command prints has the rows that `parallelism: auto` makes."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from torch import nn

from gangline.config.optimization import Optimizations
from gangline.config.parallelism import parse_parallelism
from gangline.pytorch.parallel.staged.unit import find_units
from gangline.pytorch.plan.decision import decide, recomputations_of, record_of, work_of
from gangline.pytorch.plan.measure import Measured
from gangline.pytorch.plan.model_size import Connection, ModelSize, UnitSize
from gangline.pytorch.plan.report import make_plan
from gangline.pytorch.plan.step_time import GIB, Place

_MODEL = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
_UNITS = tuple(find_units(_MODEL))
_SIZE = ModelSize(
    4 * 10**8,
    10**8,
    activation_bytes=4e9,
    forward_flops=1e12,
    units=tuple(UnitSize(unit.name, 10**8, 1e9, 1e6, 2.5e11) for unit in _UNITS),
)


def _measured(kind: str) -> Measured:
    size = _SIZE
    if kind != "none":
        units = tuple(replace(unit, activation_bytes=1e6) for unit in size.units)
        size = replace(size, activation_bytes=4e6, units=units, recomputation=kind)
    return Measured(_MODEL, "Sequential", size, _UNITS, "AdamW", 1, "", ())


@pytest.mark.parametrize(
    "section",
    [
        {"strategy": "auto"},
        {"strategy": "auto", "activation_checkpointing": "blocks", "replicas": "zero2"},
        {"strategy": "ddp"},
        {"strategy": "pipeline", "stages": 2, "activation_checkpointing": "none", "replicas": "zero2"},
    ],
)
@pytest.mark.parametrize("gib", [4.0, 12.0, 40.0])
def test_the_plan_has_the_rows_and_the_choice_of_auto(section: dict[str, object], gib: float) -> None:
    parallelism = parse_parallelism(section)
    measured = [_measured(kind) for kind in recomputations_of(parallelism)]
    work, place = work_of(parallelism, Optimizations(), 64, 1), Place(4, 2, gib * GIB)
    plan = make_plan(measured, work, place, parallelism)
    decision = decide([each.size for each in measured], work, place)
    rows = [{key: value for key, value in row.items() if key != "bubble"} for row in plan["candidates"]]
    assert rows == [asdict(row) for row in record_of(decision, place, ()).rows]
    assert plan["choice"] == (decision.chosen.name if decision.chosen else None)
    assert (plan["problem"] is None) == (decision.chosen is not None)
    kinds = {row["activation_checkpointing"] for row in rows if row["bytes"]}
    assert kinds == set(recomputations_of(parallelism))


def test_the_stages_are_those_of_the_chosen_row() -> None:
    """Where a pipeline with recomputation and divided replicas is chosen, its stages have that row's bytes."""
    parallelism = parse_parallelism({"strategy": "auto", "stages": 2, "activation_checkpointing": "full"})
    measured = [_measured("full")]
    work, place = work_of(parallelism, Optimizations(), 64, 1), Place(4, 1, 3.7 * GIB, across_rate=1e8)
    plan = make_plan(measured, work, place, parallelism)
    assert plan["choice"] == "pipeline (stages 2 microbatches 8 replicas zero2 recompute full)"
    [chosen] = [row for row in plan["candidates"] if row["name"] == plan["choice"]]
    assert plan["pipeline"]["has_divided_replicas"]
    assert max(slot["bytes"]["total"] for slot in plan["pipeline"]["slots"]) == chosen["bytes"]["total"]


def test_stages_of_a_configured_pipeline_are_its_own() -> None:
    parallelism = parse_parallelism({"strategy": "pipeline", "stages": 2, "replicas": "zero2"})
    work = work_of(parallelism, Optimizations(), 64, 1)
    found = {}
    for replicas in ("ddp", "zero2"):
        section = parse_parallelism({"strategy": "pipeline", "stages": 2, "replicas": replicas})
        plan = make_plan([_measured("none")], work, Place(4, 4, 40 * GIB), section)["pipeline"]
        found[replicas] = [slot["bytes"]["optimizer"] for slot in plan["slots"]]
    assert found == {"ddp": [8 * 2 * 10**8] * 2, "zero2": [8 * 10**8] * 2}


def test_parts_show_what_they_carry_on() -> None:
    size = replace(_SIZE, connections=(Connection("0", 1e6, 0, 1, 3),))
    section = parse_parallelism({"strategy": "pipeline", "stages": 2})
    work = work_of(section, Optimizations(), 64, 1)
    plan = make_plan([replace(_measured("none"), size=size)], work, Place(2, 2, 40 * GIB), section)
    assert [part["carried_bytes"] for part in plan["pipeline"]["parts"]] == [1e6, 0]
    assert "connections" not in plan["size"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"strategy": "pipeline", "stages": 2}, None),
        ({"strategy": "pipeline", "stages": 4, "schedule": "ZBVZeroBubble"}, "which has 4 units, but 4 stages with"),
        ({"strategy": "pipeline", "stages": 2, "split": ["one"]}, "there is no unit 'one'; the units are 0, 1, 2, 3"),
        ({"strategy": "ddp"}, None),
        ({"strategy": "zero3"}, "cannot run: has a parameter without a dimension"),
        ({"strategy": "auto"}, None),
    ],
    ids=str,
)
def test_a_configured_strategy_that_cannot_run_is_a_problem(section: dict[str, object], problem: str | None) -> None:
    """The table is made all the same."""
    parallelism = parse_parallelism(section)
    refused = {"zero3": "has a parameter without a dimension"}
    work = work_of(parallelism, Optimizations(), 64, 1, refused=refused)
    plan = make_plan([_measured("none")], work, Place(4, 4), parallelism)
    assert len(plan["candidates"]) >= 7
    if problem is None:
        assert plan["problem"] is None
    else:
        assert plan["problem"].startswith(f"parallelism: the configured strategy {parallelism.strategy} cannot run: ")
        assert problem in plan["problem"]
