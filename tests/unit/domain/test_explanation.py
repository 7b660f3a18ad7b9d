"""The explanation of why a job waits, with each id named, and the ids by which it can be asked for."""

from __future__ import annotations

import pytest

from gangline.domain.allocation import Allocation, Member, Reason, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.explanation import Blocker, describe_undelivered, explain
from gangline.domain.id import parse_job_id
from gangline.domain.resource import Agent, Slot, UndeliveredRecords
from gangline.domain.state import AgentState, Availability, Outcome, ReasonCode, State
from gangline.domain.task import Task
from gangline.errors import GanglineError

BIG = Experiment(8, "big", "alice", "{}", "ab")
TRIALS = [Trial("8.1", 8, 1), Trial("8.2", 8, 2, state=State.TERMINAL, outcome=Outcome.FAILED)]
HOLDER = Task(
    Trial("7.1", 7, 1, state=State.RUNNING),
    "digits",
    allocation=Allocation("7.1.3", "7.1", 7, 3, 1, "default", (Member("a1", 0, ("a1/0",)),), State.RUNNING),
)
AHEAD = Task(Trial("6.1", 6, 1), "first", request=Request("6.1", 6, "default", 4), queue_place=1)


def waiting(*blocking_ids: str) -> Task:
    reason = Reason(ReasonCode.NO_CAPACITY, "needs 2 slots; 1 of 4 is free", "", blocking_ids)
    return Task(TRIALS[0], "big", request=Request("8.1", 8, "default", 2), reason=reason, queue_place=2)


def blockers(task: Task, *agents: Agent) -> list[tuple[str, str, str]]:
    trial_blockers = explain(BIG, None, TRIALS, [HOLDER, AHEAD, task], agents).tasks[0].blockers
    assert all(isinstance(blocker, Blocker) for blocker in trial_blockers)
    return [(blocker.id, blocker.kind, blocker.text) for blocker in trial_blockers]


def test_every_id_is_told_in_the_order_of_the_reason() -> None:
    assert blockers(waiting("7.1.3", "6.1", "7.1.2")) == [
        ("7.1.3", "allocation", "trial 7.1 of experiment 7 digits, RUNNING on a1 (1 slot)"),
        ("6.1", "trial", "trial 6.1 of experiment 6 first, waits for 4 slots, place 1 in pool 'default'"),
        ("7.1.2", "gone", "is not there any more"),
    ]


def test_agents_say_what_is_wrong_with_them() -> None:
    agent = Agent(
        "a1",
        state=AgentState.LOST,
        availability=Availability.DRAINING,
        slots=(Slot("a1/0", is_healthy=False), Slot("a1/1", availability=Availability.DISABLED), Slot("a1/2")),
    )
    assert blockers(waiting("a1"), agent) == [
        ("a1", "agent", "agent in pool 'default', LOST, DRAINING, 1 of 3 slots DISABLED, 1 of 3 slots unhealthy")
    ]


def test_an_agent_may_be_named_like_an_allocation() -> None:
    assert blockers(waiting("7.1.3"), Agent("7.1.3")) == [("7.1.3", "agent", "agent in pool 'default'")]


def test_ended_trials_are_told_of_only_when_asked_for() -> None:
    explanation = explain(BIG, None, TRIALS, [waiting()], [])
    assert [explained.task.trial.id for explained in explanation.tasks] == ["8.1"]
    trial_explanation = explain(BIG, None, TRIALS, [waiting()], [], trial_id="8.2")
    assert [explained.task for explained in trial_explanation.tasks] == [Task(TRIALS[1], "big")]


def test_a_trial_that_is_not_there() -> None:
    with pytest.raises(GanglineError) as caught:
        explain(BIG, None, TRIALS, [], [], trial_id="8.3")
    assert caught.value.code == "trial.not_found"
    assert caught.value.message == ("experiment 8 has no trial 8.3; list them with: gangline experiment trials 8")


def test_ids_of_jobs() -> None:
    assert parse_job_id("7") == (7, "")
    assert parse_job_id("7.12") == (7, "7.12")


@pytest.mark.parametrize("text", ["", "0", "seven", "7.", "7.1.1", "-7", "7.0", "٧"])
def test_what_is_no_id_of_a_job(text: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_job_id(text)
    assert caught.value.message == f"{text!r} is no id of an experiment, as '7', and none of a trial, as '7.1'"


def test_a_trial_is_told_what_its_history_lacks() -> None:
    records = (UndeliveredRecords("7.1", "7.1.2", 120, 3600.0), UndeliveredRecords("7.2", "7.2.1", 5, 7200.0))
    agents = [Agent("a2", undelivered=(UndeliveredRecords("7.1", "7.1.2", 9, 1.0),)), Agent("a1", undelivered=records)]
    assert describe_undelivered(agents) == {
        "7.1": "logs and metrics are missing until a gateway takes them: those of attempt 2 on agent a1 since "
        "01:00:00 UTC (120 bytes), those of attempt 2 on agent a2 since 00:00:01 UTC (9 bytes)",
        "7.2": "logs and metrics are missing until a gateway takes them: those of attempt 1 on agent a1 since "
        "02:00:00 UTC (5 bytes)",
    }
