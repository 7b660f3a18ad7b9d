"""The rows of the queue, and the explanation of a job as a person reads it."""

from __future__ import annotations

from dataclasses import replace

from gangline.cli.output.job_summary import explanation_lines, in_queue_order, job_row
from gangline.domain.allocation import Allocation, Member, Reason, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.explanation import Blocker, Explanation, TaskExplanation
from gangline.domain.state import Outcome, ReasonCode, State
from gangline.domain.task import Task

NOW = 2000.0
EXPERIMENT = Experiment(8, "big", "alice", "{}", "ab")
REASON = Reason(
    ReasonCode.NO_CAPACITY, "needs 2 slots; 1 of 4 is free", "these end: 7.1.1", ("7.1.1",), eta_at=NOW + 240
)
WAITING = Task(
    Trial("8.1", 8, 1),
    "big",
    request=Request("8.1", 8, "default", 2, 10, submitted_at=NOW - 90),
    reason=REASON,
    queue_place=2,
    priority=10,
)
RUNNING = Task(
    Trial("7.1", 7, 1, state=State.RUNNING, created_at=NOW - 7200),
    "digits",
    allocation=Allocation("7.1.1", "7.1", 7, 1, 1, "default", (Member("a1", 0, ("a1/0",)),), State.RUNNING),
)


def lines(*explained: TaskExplanation, reason: Reason | None = None, experiment: Experiment = EXPERIMENT) -> list[str]:
    return explanation_lines(Explanation(experiment, reason, explained), NOW, lambda at: f"@{at:g}")


def test_rows() -> None:
    assert job_row(WAITING, NOW) == (
        2, "8.1", "big", "default", 10, "2", "QUEUED", "90 s", "in 4 min", "NO_CAPACITY",
    )  # fmt: skip
    assert job_row(RUNNING, NOW) == (
        "-", "7.1", "digits", "default", "-", "1", "RUNNING", "2 h", "-", "a1 (1)",
    )  # fmt: skip


def test_who_runs_on_call_is_told_so() -> None:
    assert RUNNING.allocation is not None
    on_call = replace(RUNNING, allocation=replace(RUNNING.allocation, is_on_call=True))
    [_, plain] = lines(TaskExplanation(RUNNING, ()))
    [_, first, second] = lines(TaskExplanation(on_call, ()))
    assert first == plain
    assert second.startswith("  on call: it has passed others")


def test_a_trial_on_fewer_slots_says_how_many_why_and_when_it_may_grow() -> None:
    assert RUNNING.allocation is not None
    allocation = replace(RUNNING.allocation, full_slots=4, shrink_reason="needs 4 slots; a2 is away", grow_at=NOW + 60)
    shrunk = replace(RUNNING, allocation=allocation)
    assert job_row(shrunk, NOW)[5] == "1 of 4"
    [_, first, *detail_lines] = lines(TaskExplanation(shrunk, ()))
    assert first.startswith("trial 7.1: RUNNING on a1 (1 slot), in all 1 of 4 slots, ")
    assert detail_lines == [
        "  RUNS_SHRUNK: runs on 1 of 4 slots: needs 4 slots; a2 is away",
        "  grows if: 4 slots are free for it, and no request with more right waits for them",
        f"  not before: @{NOW + 60:g}",
    ]


def test_an_estimate_that_has_passed_and_a_reason_that_nobody_gives() -> None:
    late = replace(WAITING, reason=replace(REASON, eta_at=NOW - 1))
    assert job_row(late, NOW)[-2] == "any moment"
    assert job_row(replace(WAITING, reason=None, queue_place=0), NOW)[-2:] == (
        "-",
        "about to start, or no scheduler leads",
    )


def test_order_is_by_pool_then_what_runs_then_the_place() -> None:
    first = replace(WAITING, queue_place=1)
    elsewhere = replace(WAITING, request=Request("9.1", 9, "a", 1))
    paused = replace(first, trial=replace(first.trial, state=State.PAUSED), queue_place=0)
    assert in_queue_order([RUNNING, paused, first, WAITING, elsewhere]) == [
        elsewhere, RUNNING, first, WAITING, paused,
    ]  # fmt: skip


def test_waiting_job_in_full() -> None:
    blocker = Blocker("7.1.1", "allocation", "trial 7.1 of experiment 7 digits, RUNNING on a1 (1 slot)")
    assert lines(TaskExplanation(WAITING, (blocker,))) == [
        "experiment 8 big: QUEUED",
        "trial 8.1: QUEUED, place 2 of the queue, needs 2 slots, pool 'default', priority 10",
        "  NO_CAPACITY: needs 2 slots; 1 of 4 is free",
        "  blocked by trial 7.1 of experiment 7 digits, RUNNING on a1 (1 slot)",
        "  starts if: these end: 7.1.1",
        "  starts: @2240 (in 4 min)",
    ]


def test_without_an_estimate_and_without_a_leader() -> None:
    unknown = replace(WAITING, reason=replace(REASON, eta_at=None, would_start_if=""))
    assert lines(TaskExplanation(unknown))[-1] == "  starts: nobody can tell when"
    alone = replace(WAITING, reason=None, queue_place=0)
    assert lines(TaskExplanation(alone))[1:] == [
        "trial 8.1: QUEUED, needs 2 slots, pool 'default', priority 10",
        "  either it is about to start, or no scheduler leads and nobody can say why it waits",
    ]


def test_running_job_says_where() -> None:
    assert lines(TaskExplanation(RUNNING))[1:] == [
        "trial 7.1: RUNNING on a1 (1 slot), pool 'default', the pool's default priority"
    ]


def test_paused_experiment_says_so_once() -> None:
    paused = replace(EXPERIMENT, state=State.PAUSED, reason="paused by alice")
    reason = Reason(ReasonCode.PAUSED, "experiment 8 is paused by alice", "it is activated")
    trial = Trial("8.1", 8, 1, state=State.PAUSED)
    assert lines(TaskExplanation(Task(trial, "big")), reason=reason, experiment=paused) == [
        "experiment 8 big: PAUSED, paused by alice",
        "  goes on if: it is activated",
        "trial 8.1: PAUSED",
    ]
    waits = Reason(ReasonCode.PAUSED, "experiment 8 is paused by alice", "it is activated and these end", ("7.1.1",))
    task = replace(WAITING, trial=trial, queue_place=0, reason=waits)
    blocked = TaskExplanation(task, (Blocker("7.1.1", "allocation", "trial 7.1"),))
    whole = [
        "experiment 8 big: PAUSED, paused by alice",
        "  goes on if: it is activated",
        "trial 8.1: PAUSED, needs 2 slots, pool 'default', priority 10",
        "  blocked by trial 7.1",
    ]
    assert lines(blocked, reason=reason, experiment=paused) == whole
    # Without a scheduler that leads there is no reason.
    alone = TaskExplanation(replace(task, reason=None))
    assert lines(alone, reason=reason, experiment=paused) == whole[:3]


def test_what_a_paused_trial_says_itself_is_not_said_twice() -> None:
    reason = Reason(ReasonCode.PAUSED, "experiment 8 is paused by alice", "it is activated")
    assert lines(TaskExplanation(replace(WAITING, reason=reason)), reason=reason) == [
        "experiment 8 big: QUEUED",
        "trial 8.1: QUEUED, place 2 of the queue, needs 2 slots, pool 'default', priority 10",
        "  PAUSED: experiment 8 is paused by alice",
        "  starts if: it is activated",
        "  starts: nobody can tell when",
    ]


def test_ended_job_and_many_trials() -> None:
    ended = replace(EXPERIMENT, state=State.TERMINAL, outcome=Outcome.FAILED, reason="trial 8.1 failed")
    trial = Trial("8.1", 8, 1, state=State.TERMINAL, outcome=Outcome.FAILED, reason="ValueError: no")
    assert lines(TaskExplanation(Task(trial, "big")), experiment=ended) == [
        "experiment 8 big: FAILED",
        "  reason: trial 8.1 failed",
        "trial 8.1: FAILED, ValueError: no",
    ]
    told = replace(ended, reason="trial 8.1 failed: ValueError: no")
    assert lines(TaskExplanation(Task(trial, "big")), experiment=told)[1:] == [
        "  reason: trial 8.1 failed: ValueError: no",
        "trial 8.1: FAILED",
    ]
    assert lines(*[TaskExplanation(RUNNING)] * 23)[-1] == "and 3 more trials; gangline job list shows them"
