"""`gangline simulate FILE`: the format word by word, what is printed, and bad input as one line with exit code 2."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from services.scheduler.simulator.__main__ import main
from services.scheduler.simulator.plan_report import align, describe_seconds
from tests.support.source import ROOT

# The document that the design fixes, field by field.
DESIGN: dict[str, Any] = {
    "policy": "priority",
    "config": {
        "fitting_policy": "best",
        "allow_heterogeneous_fits": False,
        "preemption": True,
        "queue_positions": {"group": 1},
    },
    "agents": [{"id": "a1", "slots": 8, "used_slots": 0, "max_zero_slot": 100, "used_zero_slot": 0}],
    "groups": [{"id": "g1", "max_slots": None, "weight": 1, "priority": 42}],
    "tasks": [
        {
            "id": "t1",
            "slots_needed": 4,
            "group": "g1",
            "priority": 42,
            "preemptible": True,
            "single_agent": False,
            "blocklist": [],
            "submitted_at": 1,
            "allocated_on": "a1",
            "occupies": True,
        }
    ],
}
_TASK = {key: value for key, value in DESIGN["tasks"][0].items() if key not in ("allocated_on", "occupies")}


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the program on a document and gives back its exit code, output and errors."""

    def run(document: object, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "snapshot.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        code = main([str(path), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def _tasks(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [*DESIGN["tasks"], *({**_TASK, **change} for change in changes)]


def test_the_document_of_the_design(simulate: Any) -> None:
    code, out, err = simulate(DESIGN, "--json")
    assert (code, err) == (0, "")
    decided = json.loads(out)
    assert decided == {"to_allocate": {}, "to_release": [], "reasons": {}}


def test_the_output_has_the_shape_of_the_design(simulate: Any) -> None:
    tasks = _tasks({"id": "t2"}, {"id": "t3", "slots_needed": 8}, {"id": "t0", "slots_needed": 8, "priority": 10})
    code, out, _ = simulate({**DESIGN, "tasks": tasks, "now": 2}, "--json")
    assert code == 0
    decided = json.loads(out)
    assert decided["to_allocate"] == {}
    assert decided["to_release"] == ["t1"]
    assert list(decided["reasons"]) == ["t0", "t2", "t3"]
    for reason in decided["reasons"].values():
        assert {"code", "message", "would_start_if"} <= reason.keys()
        assert all(isinstance(reason[key], str) and reason[key] for key in ("code", "message", "would_start_if"))
    assert decided["reasons"]["t0"]["code"] == "waiting_for_preemption"


def test_what_starts_is_by_agent(simulate: Any) -> None:
    agents = [{"id": f"a{n}", "slots": 4} for n in (1, 2)]
    tasks = [{"id": "t1", "slots_needed": 8}, {"id": "t2", "slots_needed": 0}]
    _, out, _ = simulate({"policy": "fair_share", "agents": agents, "tasks": tasks}, "--json")
    assert json.loads(out)["to_allocate"]["t1"] == {"a1": 4, "a2": 4}
    assert set(json.loads(out)["to_allocate"]) == {"t1", "t2"}


def test_fitting_places_each_task_by_itself_on_the_agents_as_given(simulate: Any) -> None:
    agents = [{"id": "a1", "slots": 8, "used_slots": 3}, {"id": "a2", "slots": 8}, {"id": "a3", "slots": 8}]
    tasks = [
        {"id": "small", "slots_needed": 2},
        {"id": "twin", "slots_needed": 2},
        {"id": "gang", "slots_needed": 16},
        {"id": "elsewhere", "slots_needed": 5, "blocklist": ["a1"]},
        {"id": "one", "slots_needed": 16, "single_agent": True},
        {"id": "huge", "slots_needed": 24},
    ]
    _, out, _ = simulate({"policy": "fitting", "agents": agents, "tasks": tasks}, "--json")
    decided = json.loads(out)
    assert decided["to_allocate"]["small"] == decided["to_allocate"]["twin"] == {"a1": 2}
    assert decided["to_allocate"]["gang"] == {"a2": 8, "a3": 8}
    assert set(decided["to_allocate"]["elsewhere"]) < {"a2", "a3"}
    assert {name: reason["code"] for name, reason in decided["reasons"].items()} == {
        "one": "never_fits",
        "huge": "no_capacity",
    }
    assert decided["to_release"] == []


@pytest.mark.parametrize("fitting", ["best", "worst"])
def test_best_fills_and_worst_spreads(simulate: Any, fitting: str) -> None:
    agents = [{"id": "a1", "slots": 8, "used_slots": 3}, {"id": "a2", "slots": 8}]
    document = {"policy": "fitting", "config": {"fitting_policy": fitting}, "agents": agents}
    _, out, _ = simulate({**document, "tasks": [{"id": "t", "slots_needed": 2}]}, "--json")
    assert json.loads(out)["to_allocate"] == {"t": {"a1" if fitting == "best" else "a2": 2}}


def test_unequal_agents_are_found_exactly(simulate: Any) -> None:
    agents = [{"id": f"a{size}", "slots": size} for size in (8, 6, 5, 1)]
    document = {"policy": "fitting", "config": {"allow_heterogeneous_fits": True}, "agents": agents}
    _, out, _ = simulate({**document, "tasks": [{"id": "t", "slots_needed": 11}]}, "--json")
    assert json.loads(out)["to_allocate"] == {"t": {"a5": 5, "a6": 6}}


def test_the_table_says_what_starts_stops_and_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT / "examples" / "simulator" / "snapshot.json")]) == 0
    out = capsys.readouterr().out
    assert "policy priority: 3 agents with 5 of 20 slots free; 2 running, 5 pending" in out
    assert "  probe         1  a3: 1, on call\n" in out
    assert "  sweep-1      4        60  urgent\n" in out
    assert "  urgent, 8 slots: waiting_for_preemption, expected in 1 min\n" in out
    assert "  huge, 12 slots: never_fits, no start in sight\n" in out
    assert "    would start if " in out


def test_an_empty_pool_says_so(simulate: Any) -> None:
    _, out, _ = simulate({})
    assert (
        out
        == "policy priority: 0 agents with 0 of 0 slots free; 0 running, 0 pending\n\nnothing starts\n\nnothing waits\n"
    )


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(DESIGN)))
    assert main(["-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["to_release"] == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('{"policy": "priority",\n  "agents": [}', "line 2, column 14"),
        ("", "line 1, column 1"),
        ({**DESIGN, "policy": "lottery"}, "policy: must be one of fair_share, fitting, "),
        ({**DESIGN, "pool": "gpu"}, "pool: unknown key; did you mean policy?"),
        ({**DESIGN, "agents": DESIGN["agents"] * 2}, "agents[1].id: 'a1' is there twice"),
        ({**DESIGN, "tasks": DESIGN["tasks"] * 2}, "tasks[1].id: 't1' is there twice"),
        ({**DESIGN, "groups": DESIGN["groups"] * 2}, "groups[1].id: 'g1' is there twice"),
        ({**DESIGN, "agents": [{"id": "a1", "slots": -8}]}, "agents[0].slots: must be at least 0, found -8"),
        ({**DESIGN, "agents": [{"id": "a", "slots": 0, "max_zero_slot": 0}]}, "agents[0].slots: must be at least 1"),
        ({**DESIGN, "tasks": [{**_TASK, "slots_needed": -1}]}, "tasks[0].slots_needed: must be at least 0, found -1"),
        ({**DESIGN, "tasks": [{**_TASK, "priority": 0}]}, "tasks[0].priority: must be at least 1, found 0"),
        ({**DESIGN, "tasks": [{**_TASK, "priority": 100}]}, "tasks[0].priority: must be at most 99, found 100"),
        ({**DESIGN, "groups": [{"id": "g1", "priority": 100}]}, "groups[0].priority: must be at most 99, found 100"),
        ({**DESIGN, "groups": [{"id": "g1", "weight": -0.5}]}, "groups[0].weight: must be at least 0, found -0.5"),
        ({**DESIGN, "groups": [{"id": "g1", "max_slots": 0}]}, "groups[0].max_slots: must be at least 1, found 0"),
        ({**DESIGN, "tasks": [{**_TASK, "allocated_on": "a9"}]}, "tasks[0].allocated_on: there is no agent 'a9'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(simulate: Any, document: object, said: str) -> None:
    code, out, err = simulate(document)
    assert (code, out) == (2, "")
    assert err.startswith("gangline simulate: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name either a snapshot FILE, --trace or --load"),
        (["/nonexistent.json"], "/nonexistent.json: cannot be read: No such file or directory"),
        (["x.json", "--jason"], "unrecognized arguments: --jason; --help lists the options"),
    ],
)
def test_bad_arguments_too(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "snapshot.json"
    path.write_bytes(b'{"policy": "\xff"}')
    assert main([str(path)]) == 2
    assert "byte 12 is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (65, "1 min 5 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
        (86_400 + 5, "1 d"),
        (-3, "0 s"),
    ],
)
def test_seconds_in_words(seconds: float, said: str) -> None:
    assert describe_seconds(seconds) == said


def test_columns_are_aligned() -> None:
    assert align([("a", "10"), ("long", "9")], frozenset({1})) == ["a     10", "long   9"]
    assert align([]) == []
