"""The changed snapshot has the change alone, and two plans are compared by what they decide."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.errors import GanglineError
from services.gateway.usecase.queue_preview import (
    NOWHERE,
    Difference,
    PlannedStanding,
    change_snapshot,
    compare,
    standings_of,
)
from services.gateway.usecase.shared.preview_limit import PreviewLimit
from services.scheduler.placement.plan import plan
from services.scheduler.placement.simulation_file import dump_plan, parse_simulation


def task(experiment: int, position: float, priority: int = 50, **more: Any) -> dict[str, Any]:
    return {
        "id": f"{experiment}.1", "slots_needed": 2, "group": f"experiment {experiment}", "priority": priority,
        "queue_position": position, "submitted_at": position, **more,
    }  # fmt: skip


def snapshot(policy: str = "priority") -> dict[str, Any]:
    running = task(1, 1, id="1.1.1", allocated_on={"a1": 2}, occupies=True)
    tasks = [running, task(2, 2), task(3, 3), task(4, 4), task(5, 1, priority=60)]
    groups = [{"id": each["group"], "priority": each["priority"]} for each in tasks]
    return {"policy": policy, "now": 100, "agents": [{"id": "a1", "slots": 2}], "groups": groups, "tasks": tasks}


def order_of(text: str) -> list[str]:
    """The waiting trials in the order in which the planner considers them."""
    simulation = parse_simulation(text)
    return list(dump_plan(plan(simulation.snapshot, simulation.now))["reasons"])


@pytest.mark.parametrize(
    ("experiment", "change", "order"),
    [
        (4, QueueMove(2), ["4.1", "2.1", "3.1", "5.1"]),
        (4, QueueMove(3), ["2.1", "4.1", "3.1", "5.1"]),
        (2, QueueMove(3, is_behind=True), ["3.1", "2.1", "4.1", "5.1"]),
        (2, QueueMove(4, is_behind=True), ["3.1", "4.1", "2.1", "5.1"]),
        (5, QueueMove(3), ["2.1", "5.1", "3.1", "4.1"]),
        (4, ResourceChange(priority=60), ["2.1", "3.1", "5.1", "4.1"]),
        (5, ResourceChange(priority=50), ["5.1", "2.1", "3.1", "4.1"]),
    ],
)
def test_the_planner_considers_the_changed_queue(experiment: int, change: Any, order: list[str]) -> None:
    assert order_of(json.dumps(snapshot())) == ["2.1", "3.1", "4.1", "5.1"]
    changed = change_snapshot(json.dumps(snapshot()), experiment, change)
    assert order_of(changed) == order


def test_nothing_else_changes() -> None:
    before = snapshot()
    expected = copy.deepcopy(before)
    expected["groups"][2] |= {"weight": 3.0, "max_slots": 4}
    assert json.loads(change_snapshot(json.dumps(before), 3, ResourceChange(weight=3.0, max_slots=4))) == expected
    expected["groups"][2]["max_slots"] = None
    lifted = change_snapshot(json.dumps(expected), 3, ResourceChange(max_slots=0))
    assert json.loads(lifted) == expected


@pytest.mark.parametrize(
    ("policy", "experiment", "change", "code"),
    [
        ("priority", 9, ResourceChange(priority=1), "preview.idle"),
        ("priority", 2, QueueMove(2), "preview.same"),
        ("priority", 2, QueueMove(9), "preview.anchor"),
        ("fair_share", 2, QueueMove(3), "preview.no_order"),
    ],
)
def test_what_is_refused(policy: str, experiment: int, change: Any, code: str) -> None:
    with pytest.raises(GanglineError) as refusal:
        change_snapshot(json.dumps(snapshot(policy)), experiment, change)
    assert refusal.value.code == code


def test_a_paused_trial_has_no_place_as_in_the_list_of_jobs() -> None:
    changed = snapshot()
    changed["tasks"][1]["hold"] = "paused"
    simulation = parse_simulation(json.dumps(changed))
    standings = standings_of(dump_plan(plan(simulation.snapshot, simulation.now)))
    assert {id_: one.queue_place for id_, one in standings.items()} == {"2.1": 0, "3.1": 1, "4.1": 2, "5.1": 3}
    assert "paused" in standings["2.1"].message


def test_plans_are_compared_by_what_they_decide() -> None:
    reason = {"code": "insufficient_slots", "message": "waits", "eta_at": 50.0}
    before = {"to_allocate": {"2.1": {"a1": 2}}, "to_release": [], "reasons": {"3.1": reason, "10.1": reason}}
    after = {
        "to_allocate": {"3.1": {"a1": 2}},
        "to_release": ["1.1.4"],
        "reasons": {
            "2.1": reason,
            "10.1": {"code": "insufficient_slots", "message": "waits differently", "eta_at": 50.2},
        },
    }
    differences = compare(standings_of(before), standings_of(after), 2)
    waits = PlannedStanding(queue_place=1, message="waits", eta_at=50.0)
    assert differences == (
        Difference("2.1", PlannedStanding(is_starting=True), waits),
        Difference("3.1", waits, PlannedStanding(is_starting=True)),
        Difference("1.1", NOWHERE, PlannedStanding(is_stopping=True)),
    )


async def test_many_previews_of_one_caller_leave_a_place_for_others() -> None:
    limit, running, begun, release = PreviewLimit(), 0, asyncio.Event(), asyncio.Event()

    async def preview() -> None:
        nonlocal running
        async with limit.enter("mallory"):
            running += 1
            begun.set()
            await release.wait()

    waiting = [asyncio.create_task(preview()) for _ in range(5)]
    await begun.wait()
    async with asyncio.timeout(5), limit.enter("alice"):
        assert running == 1
    release.set()
    await asyncio.gather(*waiting)
    assert running == 5
