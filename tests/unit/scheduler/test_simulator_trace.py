"""Traces in virtual time: small ones whose outcome is known to the second, the baselines, figures, and the program."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from services.scheduler.placement import Plan, Running, plan
from services.scheduler.placement.request.assignment import Assignment, Reservation
from services.scheduler.placement.request.snapshot import AgentRoom, PendingRequest, PoolConfig, Snapshot
from services.scheduler.simulator.__main__ import main
from services.scheduler.simulator.baseline import plan_by_documented_priority, plan_in_submission_order
from services.scheduler.simulator.cluster_size import agents_of_slots, parse_agents
from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.figure import figures_of, size_class
from services.scheduler.simulator.head import HeadWatch
from services.scheduler.simulator.played import EtaAnswer, Played, Run
from services.scheduler.simulator.strategy import POOL, SimulatedStrategy, choose_strategies
from services.scheduler.simulator.submission import TraceSubmission
from tests.support.source import ROOT

TRACE = ROOT / "examples" / "simulator" / "trace.csv"


def _submission(name: str, at: float, slots: int, seconds: float, priority: int = 42) -> TraceSubmission:
    return TraceSubmission(name, at, slots, seconds, seconds, priority, name)


def _strategy(name: str) -> SimulatedStrategy:
    (strategy,) = choose_strategies([name])
    return strategy


def _starts(
    submissions: list[TraceSubmission], sizes: list[int], strategy: str, setting: EngineContext
) -> dict[str, float]:
    played = play(submissions, sizes, _strategy(strategy), setting)
    return {run.submission.id: run.started_at for run in played.runs}


# Two agents of two slots: the gang g needs both, which a and b hold; s is short, l is long.
GANG = [
    _submission("a", 0, 2, 100),
    _submission("b", 1, 1, 50),
    _submission("g", 2, 4, 30),
    _submission("s", 3, 1, 60),
    _submission("l", 4, 1, 500),
]


def test_backfill_starts_what_is_over_in_time_and_nothing_else() -> None:
    starts = _starts(GANG, [2, 2], "priority", EngineContext("exact"))
    assert starts == {"a": 0, "b": 1, "g": 100, "s": 3, "l": 130}


def test_without_backfill_nobody_passes_the_gang() -> None:
    starts = _starts(GANG, [2, 2], "priority, no backfill", EngineContext("exact"))
    assert starts == {"a": 0, "b": 1, "g": 100, "s": 130, "l": 130}
    assert _starts(GANG, [2, 2], "submission order", EngineContext("exact")) == starts


def test_who_has_no_estimate_does_not_pass_either() -> None:
    assert _starts(GANG, [2, 2], "priority", EngineContext("none"))["s"] == 130


def test_on_call_everybody_passes_and_stops_when_that_starts_the_gang() -> None:
    """Also when nothing is known of run times: s has ended by then; l began when b ended, and stops when a ends."""
    setting = EngineContext("none", stop_seconds=10, restart_seconds=30)
    played = play(GANG, [2, 2], _strategy("priority, preemption"), setting)
    runs = {run.submission.id: run for run in played.runs}
    assert {name: run.started_at for name, run in runs.items()} == {"a": 0, "b": 1, "g": 110, "s": 3, "l": 51}
    assert {name: run.num_preemptions for name, run in runs.items() if run.num_preemptions} == {"l": 1}
    # 49 s are done when it is told to stop; it begins again when the gang has ended.
    assert runs["l"].ended_at == 140 + 500 - 49 + 30
    (gang,) = (head for head in played.heads if head.submission_id == "g")
    assert (gang.started_at, gang.moved_seconds) == (110, 0)


def test_a_planner_that_stops_nobody_on_call_moves_the_head() -> None:
    def stop_nobody(snapshot: Snapshot, now: float) -> Plan:
        return replace(plan(snapshot, now), preemptions=())

    strategy = replace(_strategy("priority, preemption"), decide=stop_nobody)
    played = play(GANG, [2, 2], strategy, EngineContext("none"))
    (gang,) = (head for head in played.heads if head.submission_id == "g")
    assert (gang.started_at, gang.moved_seconds) == (551, 451)


def test_documented_priority_lets_everybody_past() -> None:
    starts = _starts(GANG, [2, 2], "documented priority", EngineContext("exact"))
    assert starts == {"a": 0, "b": 1, "s": 3, "l": 51, "g": 551}


def test_a_preempted_request_loses_its_stop_and_its_restart() -> None:
    submissions = [_submission("low", 0, 2, 100, priority=60), _submission("high", 40, 2, 10, priority=10)]
    setting = EngineContext("exact", stop_seconds=5, restart_seconds=20)
    played = play(submissions, [2], _strategy("priority, preemption"), setting)
    low, high = played.runs
    assert (high.started_at, high.ended_at) == (45, 55)
    # 40 s are done; 60 are left, and 20 go for beginning again.
    assert (low.started_at, low.ended_at, low.num_preemptions) == (0, 135, 1)
    assert low.wait_seconds == 35
    assert [(spell.submission_id, spell.started_at, spell.ended_at) for spell in played.spells] == [
        ("low", 0, 45),
        ("high", 45, 55),
        ("low", 55, 135),
    ]


def test_an_order_to_stop_what_ends_first_changes_nothing() -> None:
    submissions = [_submission("low", 0, 2, 43, priority=60), _submission("high", 40, 2, 10, priority=10)]
    played = play(submissions, [2], _strategy("priority, preemption"), EngineContext(stop_seconds=5))
    low, high = played.runs
    assert (low.ended_at, low.num_preemptions, high.started_at) == (43, 0, 43)


def test_what_can_never_fit_is_set_aside() -> None:
    played = play([_submission("a", 0, 1, 9), _submission("big", 0, 3, 9)], [2], _strategy("priority"))
    assert [submission.id for submission in played.refused] == ["big"]
    assert [run.submission.id for run in played.runs] == ["a"]


def test_an_eta_asked_for_at_the_instant_of_the_start_has_no_error() -> None:
    submission = TraceSubmission("t1", 0.0, 1, 10.0, 10.0)
    answers = (EtaAnswer(0.0, 0.0, 60.0), EtaAnswer(50.0, 50.0, 50.0))
    played = Played(1, (Run(submission, 50.0, 60.0, 0, answers),), (), (), (), ())
    (only,) = figures_of("x", played, has_head=False).eta_errors
    assert (only.age_seconds, only.count, only.median) == (0.0, 1, 0.2)


def test_etas_are_asked_when_somebody_first_waits_and_later() -> None:
    submissions = [_submission("a", 0, 2, 5000), _submission("b", 1, 2, 10), _submission("c", 700, 2, 10)]
    played = play(submissions, [2], _strategy("priority"), EngineContext("exact"))
    answers = played.runs[1].answers
    assert [(answer.asked_at, answer.age_seconds, answer.eta_at) for answer in answers] == [
        (1, 0, 5000),
        (700, 600, 5000),
    ]
    (first, *_) = figures_of("x", played, has_head=True).eta_errors
    assert (first.age_seconds, first.count, first.median) == (0, 2, 0)


def _snapshot(
    requests: list[PendingRequest], running: tuple[Running, ...] = (), is_preemption_on: bool = False
) -> Snapshot:
    used = sum(work.slots for work in running)
    config = PoolConfig(POOL, is_preemption_on=is_preemption_on)
    return Snapshot((config,), (AgentRoom("a1", POOL, 4, used),), tuple(requests), running)


def _pending(name: str, slots: int, priority: int = 42, at: float = 0) -> PendingRequest:
    return PendingRequest(name, name, POOL, slots, priority, submitted_at=at)


def test_submission_order_stops_at_the_first_that_does_not_fit() -> None:
    snapshot = _snapshot([_pending("late", 1, priority=1, at=3), _pending("b", 8, at=2), _pending("a", 1, at=1)])
    decided = plan_in_submission_order(snapshot, 0)
    assert [assignment.trial_id for assignment in decided.assignments] == ["a"]


def test_documented_priority_schedules_no_lower_priority_while_a_higher_one_waits() -> None:
    requests = [_pending("a", 3, 10), _pending("b", 2, 10, at=1), _pending("c", 1, 10, at=2), _pending("d", 1, 42)]
    decided = plan_by_documented_priority(_snapshot(requests), 0)
    assert [assignment.trial_id for assignment in decided.assignments] == ["a", "c"]


def test_documented_priority_preempts_the_lowest_as_far_as_it_helps() -> None:
    works = tuple(
        Running(name, name, name, POOL, {"a1": 1}, priority, started_at=start)
        for name, priority, start in (("old", 60, 1), ("new", 60, 2), ("mid", 50, 3), ("same", 10, 4))
    )
    decided = plan_by_documented_priority(_snapshot([_pending("x", 2, 10)], works, is_preemption_on=True), 9)
    assert {preemption.allocation_id for preemption in decided.preemptions} == {"new", "old"}
    assert not plan_by_documented_priority(_snapshot([_pending("x", 4, 10)], works, True), 9).preemptions
    stopping = tuple(replace(work, is_stopping=work.priority == 60) for work in works)
    assert not plan_by_documented_priority(_snapshot([_pending("x", 2, 10)], stopping, True), 9).preemptions


def test_a_broken_promise_is_seen() -> None:
    """A planner that lets a long one take what it keeps for the head."""
    watch = HeadWatch(PoolConfig(POOL))
    agent = AgentRoom("a1", POOL, 4, 2)
    head, long = _pending("head", 4), _pending("long", 2, at=1)
    requests = {"head": head, "long": long}
    reservations = {POOL: Reservation("head", 100.0, {"a1": 4})}
    first = Running("first", "first", "", POOL, {"a1": 2})
    late = Running("long", "long", "", POOL, {"a1": 2})
    config = (PoolConfig(POOL),)
    started = Plan((Assignment("long", {"a1": 2}),), (), {}, reservations=reservations)
    watch.look(Snapshot(config, (agent,), (head, long), (first,)), started, requests, 0.0)
    waiting = Plan((), (), {}, reservations=reservations)
    busy = replace(agent, used=4)
    watch.look(Snapshot(config, (busy,), (head,), (first, late)), waiting, requests, 90.0)
    watch.look(Snapshot(config, (agent,), (head,), (late,)), waiting, requests, 100.0)
    watch.look(
        Snapshot(config, (replace(agent, used=0),), (head,)),
        Plan((Assignment("head", {"a1": 4}),), (), {}),
        requests,
        140.0,
    )
    (watched,) = watch.heads
    assert (watched.promised_at, watched.started_at, watched.moved_seconds, watched.late_seconds) == (100, 140, 40, 40)


def test_figures_are_counted_by_size() -> None:
    played = play(GANG, [2, 2], _strategy("priority"), EngineContext("exact"))
    figures = figures_of("priority", played, has_head=True)
    assert figures.waits_by_size["2-8"].mean == pytest.approx((0 + 98) / 2)
    assert figures.waits_by_size["1"].longest == 126
    assert figures.makespan_seconds == 630
    # Until the last submission, at second 4, 2 slots were busy for 1 s, then 3 for 2 s, and 4 for the last one.
    assert figures.utilisation == pytest.approx((2 * 1 + 3 * 2 + 4 * 1) / (4 * 4))
    assert figures.head is not None
    # g first, and l while g runs.
    assert (figures.head.count, figures.head.moved, figures.head.late) == (2, 0, 0)
    assert [size_class(slots) for slots in (1, 2, 8, 9, 64, 65, 4096)] == [
        "1",
        "2-8",
        "2-8",
        "9-64",
        "9-64",
        "65+",
        "65+",
    ]


def test_agents_as_typed() -> None:
    assert parse_agents("2x8+1x4") == [8, 8, 4]
    assert agents_of_slots(20) == [8, 8, 4]
    assert agents_of_slots(8) == [8]


@pytest.mark.parametrize("text", ["", "8", "0x8", "8x0", "-1x8", "2x8,1x4", "999999999x1"])
def test_agents_that_are_none(text: str) -> None:
    with pytest.raises(GanglineError, match="must be agents x slots"):
        parse_agents(text)


def test_the_table_has_every_strategy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("".join(TRACE.read_text().splitlines(keepends=True)[:60]), encoding="utf-8")
    assert main(["--trace", str(path), "--slots", "32"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("59 submissions within ")
    for name in ("priority", "priority, no backfill", "fair share", "round robin", "submission order"):
        assert f"\n{name}  " in out
    assert "utilisation" in out
    assert "gives its slots back 10 s later; it loses these, and 30 s when it begins again" in out


def test_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--load", "philly", "--slots", "64", "--days", "2", "--seed", "3", "--json"]
    assert main([*arguments, "--strategies", "priority;documented priority"]) == 0
    ours, theirs = json.loads(capsys.readouterr().out)
    assert (ours["strategy"], theirs["strategy"]) == ("priority", "documented priority")
    assert ours["submissions"] == theirs["submissions"] > 20
    assert {"mean", "p95", "count", "longest"} == set(ours["waits"])


def test_a_written_load_plays_like_the_load_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    load = ["--load", "llm-dev", "--slots", "32", "--seed", "5"]
    assert main([*load, "--write", str(path)]) == 0
    assert capsys.readouterr().out == ""
    outputs = []
    for source in (load, ["--trace", str(path), "--agents", "4x8"]):
        assert main([*source, "--strategies", "priority", "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_the_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plot.png"
    arguments = ["--load", "llm-dev", "--slots", "16", "--days", "3", "--plot", str(path)]
    assert main([*arguments, "--strategies", "priority;round robin"]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == ""


def test_without_matplotlib_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--load", "helios", "--plot", str(tmp_path / "x.png")]) == 1
    advice = "type: pip install 'gangline[plot]' (docs/install.md says from where)"
    assert f"--plot needs matplotlib; {advice}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.json", "--load", "helios"], "name either a snapshot FILE, --trace or --load"),
        (["--load", "lottery"], "argument --load: invalid choice: 'lottery'"),
        (["--load", "helios", "--days", "0"], "--days: must be more than 0, not 0"),
        (["--load", "helios", "--days", "nan"], "--days: must be more than 0, not nan"),
        (["--load", "helios", "--intensity", "-1"], "--intensity: must be more than 0, not -1"),
        (["--load", "helios", "--slots", "0"], "--slots: must be at least 1"),
        (["--load", "helios", "--agents", "8"], "--agents '8': must be agents x slots"),
        (["--load", "helios", "--agents", "1x8", "--slots", "8"], "not allowed with argument"),
        (["--load", "helios", "--priorities", "0:1"], "--priorities '0:1': must be a priority from 1 to 99"),
        (["--load", "helios", "--strategies", "luck"], "there is no strategy 'luck'; there are: priority;"),
        (["--load", "helios", "--days", "0.00001", "--slots", "1"], "nobody submits anything in so short a time"),
        (["--load", "helios", "--plot", "x.jpg"], "--plot x.jpg: the name must end with .png"),
        (["--trace", "/nonexistent.csv"], "/nonexistent.csv: cannot be read: No such file or directory"),
        (["--load", "helios", "--write", "/nonexistent/x.csv"], "/nonexistent/x.csv: cannot be written"),
        (["--trace", str(TRACE), "--slots", "0"], "--slots: must be at least 1"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_broken_trace_is_named_with_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submitted_at,slots,duration_seconds\n0,1,60\n0,1,-60\n", encoding="utf-8")
    assert main(["--trace", str(path)]) == 2
    said = "line 3, column 3 (duration_seconds): must be seconds, more than 0, not -60\n"
    assert capsys.readouterr().err == f"gangline simulate: {path}: {said}"


def test_a_trace_that_fits_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submitted_at,slots,duration_seconds\n0,9,60\n", encoding="utf-8")
    assert main(["--trace", str(path), "--agents", "1x8"]) == 2
    assert "nothing in this trace can ever fit the agents" in capsys.readouterr().err


def test_played_holds_every_submission_once() -> None:
    played: Played = play(GANG, [2, 2], _strategy("fair share"))
    assert [run.submission for run in played.runs] == GANG
