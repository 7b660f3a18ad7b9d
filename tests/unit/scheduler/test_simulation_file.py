"""The file of `gangline simulate`: what it means, what it refuses, and that a dump replays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.errors import GanglineError
from services.scheduler.placement import AgentRoom, PendingRequest, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.simulation_file import dump_plan, dump_simulation, parse_simulation

EXAMPLE: dict[str, Any] = {
    "policy": "priority",
    "config": {
        "fitting_policy": "best",
        "allow_heterogeneous_fits": False,
        "preemption": True,
        "queue_positions": {"g1": 1},
    },
    "agents": [{"id": "a1", "slots": 8, "used_slots": 0, "max_zero_slot": 100, "used_zero_slot": 0}],
    "groups": [{"id": "g1", "max_slots": None, "weight": 1, "priority": 42}],
    "tasks": [
        {"id": "t0", "slots_needed": 8, "group": "g0", "priority": 60, "allocated_on": "a1", "occupies": True},
        {
            "id": "t1",
            "slots_needed": 4,
            "group": "g1",
            "priority": 42,
            "preemptible": True,
            "single_agent": False,
            "blocklist": [],
            "submitted_at": 1,
        },
        {"id": "t2", "slots_needed": 0, "group": "g1"},
    ],
}


def _changed(**fields: Any) -> str:
    return json.dumps({**EXAMPLE, **fields})


def _decide(text: str) -> dict[str, Any]:
    simulation = parse_simulation(text)
    return dump_plan(plan(simulation.snapshot, simulation.now))


def test_the_example() -> None:
    decided = _decide(json.dumps(EXAMPLE))
    assert decided["to_allocate"] == {"t2": {"a1": 0}}
    assert decided["to_release"] == ["t0"]
    assert decided["reasons"]["t1"]["code"] == "waiting_for_preemption"
    assert decided["reasons"]["t1"]["blocking_ids"] == ["t0"]
    assert decided["reasons"]["t1"]["changes"] == [{"kind": "end_work", "allocation_ids": ("t0",)}]


def test_fitting_places_each_by_itself() -> None:
    tasks = [{"id": name, "slots_needed": 8} for name in ("t1", "t2")]
    assert _decide(_changed(policy="fitting", tasks=tasks))["to_allocate"] == {"t1": {"a1": 8}, "t2": {"a1": 8}}


def test_used_slots_and_what_occupies_them() -> None:
    agents = [{"id": "a1", "slots": 8, "used_slots": 4}]
    within = {"id": "t0", "slots_needed": 4, "allocated_on": {"a1": 4}}
    waits = {"id": "t1", "slots_needed": 4}
    assert _decide(_changed(agents=agents, tasks=[within, waits]))["to_allocate"] == {"t1": {"a1": 4}}
    besides = {**within, "occupies": True}
    assert _decide(_changed(agents=agents, tasks=[besides, waits]))["to_allocate"] == {}


def test_group_priority_holds_where_a_task_has_none() -> None:
    groups = [{"id": "g1", "priority": 7}]
    simulation = parse_simulation(_changed(groups=groups, tasks=[{"id": "t", "slots_needed": 1, "group": "g1"}]))
    assert simulation.snapshot.requests[0].priority == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"policy": "priority",\n  "agents": [}', "line 2, column 14"),
        ("[]", "the file: expected a mapping, found a list"),
        (_changed(policy="lottery"), "policy: must be one of fair_share, "),
        (_changed(agents=[{"id": "a1", "slots": 1}, {"id": "a1", "slots": 1}]), "agents[1].id: 'a1' is there twice"),
        (_changed(tasks=[{"id": "t", "slots_needed": 1}] * 2), "tasks[1].id: 't' is there twice"),
        (_changed(groups=[{"id": "g"}] * 2), "groups[1].id: 'g' is there twice"),
        (_changed(agents=[{"id": "a1", "slots": -1}]), "agents[0].slots: must be at least 0, found -1"),
        (_changed(agents=[{"id": "a1", "slots": 0, "max_zero_slot": 0}]), "agents[0].slots: must be at least 1"),
        (_changed(agents=[{"id": "a1"}]), "agents[0].slots: required, but missing"),
        (_changed(agents=[{"id": "a1", "slots": 2, "used_slots": 3}]), "agents[0].used_slots: 3 of 2"),
        (_changed(tasks=[{"id": "t", "slots_needed": -2}]), "tasks[0].slots_needed: must be at least 0, found -2"),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 1.5}]),
            "tasks[0].slots_needed: expected an integer, found the number 1.5",
        ),
        (_changed(tasks=[{"id": "t", "slots_needed": 1, "priority": 100}]), "tasks[0].priority: must be at most 99, "),
        (_changed(tasks=[{"id": "t", "slots_needed": 1, "priority": 0}]), "tasks[0].priority: must be at least 1, "),
        (_changed(groups=[{"id": "g", "weight": -1}]), "groups[0].weight: must be at least 0, found -1"),
        (_changed(groups=[{"id": "g", "max_slots": 0}]), "groups[0].max_slots: must be at least 1, found 0"),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 1, "priorty": 3}]),
            "tasks[0].priorty: unknown key; did you mean priority?",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 1, "allocated_on": 3}]),
            "tasks[0].allocated_on: expected the name of an agent, or slots by agent, found the integer 3",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 2, "allocated_on": {"a1": -2}}]),
            "tasks[0].allocated_on.a1: must be at least 0, found -2",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 1, "grow_at": 5}]),
            "tasks[0].grow_at: is for work that runs; add allocated_on, or remove it",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 8, "allocated_on": "a1", "full_slots": 8}]),
            "tasks[0].full_slots: must be above its 8 slots, found 8",
        ),
        (
            _changed(config={"backfill": "often"}),
            "config.backfill: expected true, false or 'on_call', found the string",
        ),
        (_changed(agents="a1"), "agents: expected a list, found the string 'a1'"),
        ('{"now": NaN}', "now: expected a finite number"),
        ("[" * 100_000, "its lists and mappings are nested too deeply"),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 1, "allocated_on": "b"}]),
            "tasks[0].allocated_on: there is no agent 'b'",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 9, "allocated_on": "a1", "occupies": True}]),
            "tasks[0].allocated_on: agent 'a1' has no 9 slots left",
        ),
        (
            _changed(tasks=[{"id": "t", "slots_needed": 3, "allocated_on": {"a1": 2}}]),
            "tasks[0].allocated_on: holds 2 slots, not 3",
        ),
    ],
)
def test_mistakes_are_one_line_that_says_where(text: str, said: str) -> None:
    with pytest.raises(GanglineError) as refused:
        parse_simulation(text)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("", {}),
        ("config.", {"config": {}}),
        ("agents[0].", {"agents": [{"id": "a1", "slots": 1}]}),
        ("groups[0].", {"groups": [{"id": "g"}]}),
        ("tasks[0].", {"tasks": [{"id": "t", "slots_needed": 1}]}),
    ],
)
def test_an_unknown_key_is_refused_wherever_it_stands(path: str, written: dict[str, Any]) -> None:
    document: dict[str, Any] = {**EXAMPLE, "tasks": [], **written}
    parse_simulation(json.dumps(document))
    (value,) = written.values() if written else (document,)
    (value[0] if isinstance(value, list) else value)["qqq"] = 1
    with pytest.raises(GanglineError) as refused:
        parse_simulation(json.dumps(document))
    assert refused.value.message.startswith(f"{path}qqq: unknown key; known here are "), refused.value.message


def test_a_dump_replays_to_the_same_plan() -> None:
    agents = (
        AgentRoom("a1", "lab", 8, 5, labels={"rack": "r1"}),
        AgentRoom("a2", "lab", 4, 1, is_usable=False, problem="not connected"),
        AgentRoom("a3", "lab", 4, 2, draining=1),
    )
    running = (
        Running("7.1.1", "7.1", "7", "lab", {"a1": 3}, priority=50, started_at=10.0, checkpoint_age_seconds=3.0),
        Running("8.1.1", "8.1", "8", "lab", {"a3": 3}, draining_by_agent={"a3": 1}, estimated_end_at=400.0),
    )
    requests = tuple(
        PendingRequest(f"{n}.1", str(n), "lab", slots, submitted_at=float(n))
        for n, slots in enumerate((6, 1, 4, 0, 16), 20)
    )
    config = PoolConfig("lab", is_preemption_on=True, fitting="worst")
    snapshot = Snapshot((config,), agents, requests, running)
    replayed = parse_simulation(json.dumps(dump_simulation(snapshot, "lab", 100.0)))
    before = json.dumps(dump_plan(plan(snapshot, 100.0))).replace("'lab'", "'default'").replace('"lab"', '"default"')
    assert json.dumps(dump_plan(plan(replayed.snapshot, replayed.now))) == before


def test_what_is_on_call_stays_so_in_a_dump() -> None:
    agents = (AgentRoom("a1", "lab", 4, 4),)
    works = (
        Running("7.1.1", "7.1", "7", "lab", {"a1": 1}, started_at=50.0, submitted_at=7.0, is_on_call=True),
        Running("8.1.1", "8.1", "8", "lab", {"a1": 3}, started_at=40.0, queue_position=9.0, is_on_call=True),
    )
    requests = (PendingRequest("3.1", "3", "lab", 4, submitted_at=3.0, queue_position=3.0),)
    config = PoolConfig("lab", is_preemption_on=True, backfill="on_call")
    snapshot = Snapshot((config,), agents, requests, works)
    replayed = parse_simulation(json.dumps(dump_simulation(snapshot, "lab", 100.0)))
    assert dump_plan(plan(replayed.snapshot, 100.0))["to_release"] == ["7.1.1", "8.1.1"]
    assert replayed.snapshot.pools[0].backfill == "on_call"
    [first, second] = replayed.snapshot.running
    assert (first.submitted_at, first.started_at, first.queue_position, first.is_on_call) == (7.0, 50.0, None, True)
    assert (second.submitted_at, second.queue_position) == (0.0, 9.0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"preemption": True}, "on_call"),
        ({"preemption": True, "backfill": True}, True),
        ({"preemption": True, "backfill": False}, False),
        ({}, "on_call"),
        ({"preemption": False}, True),
    ],
)
def test_backfill_is_on_call_where_nothing_else_is_said_and_it_is_possible(
    config: dict[str, bool], expected: object
) -> None:
    assert parse_simulation(_changed(policy="priority", config=config)).snapshot.pools[0].backfill == expected
    shared = parse_simulation(_changed(policy="fair_share", config=config)).snapshot.pools[0]
    assert shared.backfill == (True if expected == "on_call" else expected)


def test_a_file_preempts_unless_it_says_otherwise() -> None:
    for policy, config, expected in (
        ("fair_share", {}, True),
        ("fair_share", {"preemption": False}, False),
        ("priority", {}, True),
        ("priority", {"preemption": False}, False),
        ("round_robin", {}, False),
    ):
        pool = parse_simulation(_changed(policy=policy, config=config)).snapshot.pools[0]
        assert pool.is_preemption_on is expected


def test_on_call_is_refused_where_nobody_can_be_called() -> None:
    for policy, preemption in (("priority", False), ("fair_share", True)):
        with pytest.raises(GanglineError) as refused:
            parse_simulation(_changed(policy=policy, config={"preemption": preemption, "backfill": "on_call"}))
        assert refused.value.message.startswith("config.backfill: 'on_call' needs a pool of type priority")
