"""The next state of a trial when its allocation has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.config.strategy_choice import CandidateRow, StrategyChoice
from gangline.domain.allocation import Allocation, ExitReport, LogHit, Member
from gangline.domain.experiment import Checkpoint, Trial
from gangline.domain.state import CheckpointState, ExitKind, LogAction, Outcome, State, TaskKind
from services.scheduler.state.rules import Rules
from services.scheduler.transition.retry import (
    GATEWAY_PAUSE_SECONDS,
    INFRASTRUCTURE,
    RetryDecision,
    RetryTerms,
    decide,
    describe,
    excluded_by,
    first_failure,
    older_checkpoint,
    step_down_if_it_helps,
)

RULES = Rules(give_up_seconds=7200.0, max_backoff_seconds=8)


def _allocation(*exits: ExitReport, stop_kind: ExitKind | None = None, failure: ExitReport | None = None) -> Allocation:
    members = tuple(Member(f"a{rank}", rank, (f"a{rank}/0",)) for rank in range(len(exits)))
    return Allocation(
        "1.1.1", "1.1", 1, 1, 5, "default", members, State.STOPPING, exits, stop_kind=stop_kind,
        stop_reason="as asked" if stop_kind else "", failure=failure,
    )  # fmt: skip


def _exit(kind: ExitKind, rank: int = 0, failed_at: float = 1.0, message: str = "") -> ExitReport:
    return ExitReport(f"a{rank}", kind, message, failed_at=failed_at, ended_at=failed_at + 1)


def _decide(
    allocation: Allocation,
    restarts: int = 0,
    setbacks: int = 0,
    closing: Outcome | None = None,
    row: int = 0,
    *,
    since: float = 0.0,
    now: float = 100.0,
    had_gateway: bool = False,
) -> RetryDecision:
    trial = Trial("1.1", 1, 1, restarts=restarts, infrastructure_failures=setbacks, failures_in_a_row=row)
    trial = replace(trial, failing_since_at=since)
    return decide(trial, allocation, RetryTerms(RULES, now, 2, closing, had_gateway=had_gateway))


def test_all_completed() -> None:
    decision = _decide(_allocation(_exit(ExitKind.COMPLETED), _exit(ExitKind.COMPLETED, 1)))
    assert (decision.outcome, decision.failure, decision.failures_in_a_row) == (Outcome.COMPLETED, None, 0)


def test_completed_even_if_a_kill_came_too_late() -> None:
    assert _decide(_allocation(_exit(ExitKind.COMPLETED)), closing=Outcome.CANCELED).outcome is Outcome.COMPLETED


def test_user_error_uses_a_restart_and_backs_off() -> None:
    first = _decide(_allocation(_exit(ExitKind.USER_ERROR)))
    second = _decide(_allocation(_exit(ExitKind.SIGNAL)), restarts=1, row=1)
    last = _decide(_allocation(_exit(ExitKind.USER_ERROR, message="boom")), restarts=2)
    assert (first.outcome, first.restarts, first.delay_seconds) == (None, 1, 0.0)
    assert (second.outcome, second.restarts, second.delay_seconds) == (None, 2, 1.0)
    assert (last.outcome, last.reason) == (Outcome.FAILED, "agent a0: boom; all 2 restarts are used up")


@pytest.mark.parametrize(
    "kind",
    [ExitKind.OUT_OF_MEMORY, ExitKind.IMPORT_ERROR, ExitKind.CONFIGURATION_ERROR, ExitKind.NONFINITE_METRIC],
)
def test_what_would_come_again_is_not_tried_again(kind: ExitKind) -> None:
    decision = _decide(_allocation(_exit(kind)))
    assert decision.outcome is Outcome.FAILED
    assert "not tried again" in decision.reason


def _failed_again(kind: ExitKind, **fields: object) -> RetryDecision:
    """The fourth failure in a row of a trial that had reached batch 100 and gone on from checkpoint c1."""
    trial = Trial("1.1", 1, 1, restarts=1, failures_in_a_row=3, infrastructure_failures=2, latest_checkpoint_id="c1")
    trial = replace(trial, furthest_batches=100, batches_completed=100)
    trial = replace(trial, **fields)  # type: ignore[arg-type] # by name
    allocation = replace(_allocation(_exit(kind)), checkpoint_id="c1")
    return decide(trial, allocation, RetryTerms(RULES, 100.0, 5))


@pytest.mark.parametrize("progress", [{"latest_checkpoint_id": "c2"}, {"batches_completed": 101}])
@pytest.mark.parametrize(("kind", "setbacks"), [(ExitKind.USER_ERROR, 0), (ExitKind.RUNNER_LOST, 1)])
def test_an_attempt_that_made_progress_begins_a_new_row(
    kind: ExitKind, setbacks: int, progress: dict[str, object]
) -> None:
    decision = _failed_again(kind, **progress)
    assert (decision.outcome, decision.delay_seconds, decision.failures_in_a_row) == (None, 0.0, 1)
    assert (decision.infrastructure_failures, decision.failing_since_at) == (setbacks, 100.0 * setbacks)


@pytest.mark.parametrize(("batches", "row"), [(None, 4), (100, 4), (101, 1)])
def test_batches_that_only_the_end_of_a_rank_tells_are_progress(batches: int | None, row: int) -> None:
    trial = Trial("1.1", 1, 1, failures_in_a_row=3, furthest_batches=100, batches_completed=100)
    ends = [replace(_exit(ExitKind.USER_ERROR, rank), batches_completed=batches if rank else 7) for rank in range(2)]
    assert decide(trial, _allocation(*ends), RetryTerms(RULES, 100.0, 5)).failures_in_a_row == row


def test_an_attempt_without_progress_goes_on_with_the_row() -> None:
    decision = _failed_again(ExitKind.USER_ERROR)
    assert (decision.outcome, decision.delay_seconds, decision.failures_in_a_row) == (None, 4.0, 4)
    setback = _failed_again(ExitKind.RUNNER_LOST, failing_since_at=40.0)
    assert (setback.infrastructure_failures, setback.failing_since_at) == (3, 40.0)


def test_progress_gives_no_restart_back() -> None:
    decision = _failed_again(ExitKind.USER_ERROR, latest_checkpoint_id="c2")
    assert decision.restarts == 2
    assert _failed_again(ExitKind.USER_ERROR, latest_checkpoint_id="c2", restarts=5).outcome is Outcome.FAILED


@pytest.mark.parametrize("kind", [ExitKind.HANG, ExitKind.UNAVAILABLE, ExitKind.SIGNAL])
def test_what_may_go_better_uses_a_restart(kind: ExitKind) -> None:
    decision = _decide(_allocation(_exit(kind)))
    assert (decision.outcome, decision.restarts, decision.infrastructure_failures) == (None, 1, 0)


def test_a_damaged_checkpoint_uses_no_restart() -> None:
    older = Checkpoint("c1", "1.1", 1, 10, "/s")
    allocation = _allocation(_exit(ExitKind.CHECKPOINT_CORRUPT))
    decision = decide(Trial("1.1", 1, 1, restarts=2), allocation, RetryTerms(RULES, 100.0, 2, older=older))
    assert (decision.outcome, decision.restarts, decision.checkpoint) == (None, 2, older)
    assert _decide(allocation).reason == (
        "agent a0: checkpoint corrupt; not tried again, because the trial has no older checkpoint"
    )


def test_what_is_being_deleted_is_no_older_checkpoint() -> None:
    checkpoints = [Checkpoint(f"c{batches}", "1.1", 1, batches, "/s") for batches in (10, 20, 30)]
    checkpoints[1] = replace(checkpoints[1], state=CheckpointState.DELETING)
    allocation = replace(_allocation(_exit(ExitKind.CHECKPOINT_CORRUPT)), checkpoint_id="c30")
    assert older_checkpoint(Trial("1.1", 1, 1, latest_checkpoint_id="c30"), allocation, checkpoints) == checkpoints[0]
    newer = [*checkpoints, Checkpoint("c40", "1.1", 1, 40, "/s")]
    assert older_checkpoint(Trial("1.1", 1, 1, latest_checkpoint_id="c40"), allocation, newer) == newer[-1]
    assert older_checkpoint(Trial("1.1", 1, 1, latest_checkpoint_id="c30"), allocation, checkpoints[1:]) is None


def _repeated(last: ExitReport | None, now: ExitReport) -> RetryDecision:
    trial = Trial("1.1", 1, 1, restarts=1, last_failure=last)
    return decide(trial, _allocation(now), RetryTerms(RULES, 100.0, 5))


def _boom(batches: int | None = 7, signature: str = "USER_ERROR ValueError: #", message: str = "boom") -> ExitReport:
    return ExitReport("a0", ExitKind.USER_ERROR, message, failed_at=1.0, batches_completed=batches, signature=signature)


def test_the_same_failure_at_the_same_batch_twice_is_the_last() -> None:
    decision = _repeated(_boom(message="boom of 1"), _boom(message="boom of 2"))
    assert decision.outcome is Outcome.FAILED
    assert decision.reason == ("agent a0: boom of 2; not tried again, because it is the same failure at batch 7 twice")
    before = _repeated(_boom(0), _boom(0))
    assert before.reason.endswith("because it is the same failure before the first reported batch twice")


@pytest.mark.parametrize(
    ("last", "now"),
    [
        (None, _boom()),
        (_boom(6), _boom(7)),
        (_boom(signature="USER_ERROR KeyError: #"), _boom()),
        # Where it was, or whose fault it is, nobody knows.
        (_boom(None), _boom(None)),
        (_boom(signature=""), _boom(signature="")),
    ],
)
def test_another_failure_is_tried_again(last: ExitReport | None, now: ExitReport) -> None:
    assert _repeated(last, now).outcome is None


def _hit(action: LogAction | None, line: str = "bad luck") -> LogHit:
    return LogHit("luck", action, 3, line)


def test_a_log_policy_may_make_a_failure_the_last() -> None:
    hopeless = replace(_exit(ExitKind.USER_ERROR), message="boom", log_hits=(_hit(LogAction.CANCEL_RETRIES),))
    decision = _decide(_allocation(hopeless))
    assert decision.outcome is Outcome.FAILED
    assert decision.reason == "agent a0: boom; not tried again, because log policy 'luck' matched on rank 3: bad luck"
    elsewhere = replace(_exit(ExitKind.PEER_FAILED, 1), log_hits=(_hit(LogAction.CANCEL_RETRIES),))
    assert _decide(_allocation(_exit(ExitKind.USER_ERROR), elsewhere)).outcome is Outcome.FAILED


@pytest.mark.parametrize("action", [None, LogAction.EXCLUDE_NODE])
def test_any_other_log_policy_leaves_the_retries(action: LogAction | None) -> None:
    assert _decide(_allocation(replace(_exit(ExitKind.USER_ERROR), log_hits=(_hit(action),)))).outcome is None


def test_a_log_policy_of_a_trial_that_completes_means_nothing() -> None:
    done = replace(_exit(ExitKind.COMPLETED), log_hits=(_hit(LogAction.CANCEL_RETRIES),))
    assert _decide(_allocation(done)).outcome is Outcome.COMPLETED


def test_agents_are_excluded_by_their_own_lines() -> None:
    first = replace(_exit(ExitKind.PEER_FAILED), log_hits=(_hit(None), _hit(LogAction.CANCEL_RETRIES)))
    hits = (_hit(LogAction.EXCLUDE_NODE, "one"), _hit(LogAction.EXCLUDE_NODE, "two"))
    second = replace(_exit(ExitKind.USER_ERROR, 1), log_hits=hits)
    assert excluded_by(_allocation(first, second)) == {"a1": "log policy 'luck' matched on rank 3: one"}


@pytest.mark.parametrize("kind", sorted(INFRASTRUCTURE))
def test_failures_of_the_machines_use_no_restart_and_wait(kind: ExitKind) -> None:
    first = _decide(_allocation(_exit(kind)), had_gateway=True)
    late = 50.0 + RULES.give_up_seconds - 1
    many = _decide(_allocation(_exit(kind)), setbacks=40, row=40, since=50.0, now=late, had_gateway=True)
    assert (first.outcome, first.restarts, first.infrastructure_failures, first.failing_since_at) == (None, 0, 1, 100.0)
    assert (many.outcome, many.infrastructure_failures, many.failing_since_at) == (None, 41, 50.0)
    assert many.delay_seconds == RULES.max_backoff_seconds


def test_failures_of_the_machines_end_a_trial_after_hours_only() -> None:
    allocation = _allocation(_exit(ExitKind.AGENT_LOST, message="gone"))
    end = _decide(allocation, setbacks=4, row=4, since=50.0, now=50.0 + RULES.give_up_seconds)
    assert end.outcome is Outcome.FAILED
    assert end.reason == (
        "5 attempts in a row failed within 2.0 h for reasons outside of the trial (give_up_hours: 2); "
        "last, agent a0: gone"
    )
    rare = _decide(allocation, setbacks=1, row=1, since=50.0, now=50.0 + 100 * RULES.give_up_seconds)
    assert rare.outcome is None, "it waited for slots, and was hardly tried"


def test_a_preemption_keeps_the_row_of_failures() -> None:
    decision = _decide(_allocation(_exit(ExitKind.PREEMPTED)), setbacks=2, row=2, since=50.0)
    assert (decision.infrastructure_failures, decision.failing_since_at) == (2, 50.0)


def test_the_earliest_real_failure_decides() -> None:
    allocation = _allocation(
        _exit(ExitKind.PEER_FAILED, 0, failed_at=1.0),
        _exit(ExitKind.OUT_OF_MEMORY, 1, failed_at=3.0),
        _exit(ExitKind.NETWORK, 2, failed_at=4.0),
        stop_kind=ExitKind.KILLED,
    )
    failure = first_failure(allocation)
    assert failure is not None
    assert failure.kind is ExitKind.OUT_OF_MEMORY
    assert _decide(allocation).outcome is Outcome.FAILED


def test_members_that_were_killed_with_the_failed_one_are_no_cancellation() -> None:
    allocation = _allocation(
        _exit(ExitKind.KILLED, 0, 5.0), _exit(ExitKind.USER_ERROR, 1, 2.0), stop_kind=ExitKind.KILLED
    )
    assert _decide(allocation).outcome is None


def test_a_gang_in_which_nobody_admits_is_a_matter_of_the_machines() -> None:
    decision = _decide(_allocation(_exit(ExitKind.PEER_FAILED), _exit(ExitKind.PEER_FAILED, 1)))
    assert (decision.outcome, decision.infrastructure_failures) == (None, 1)


def test_what_the_scheduler_found_itself_decides() -> None:
    exit_report = ExitReport("a1", ExitKind.START_FAILED, "not accepted by a1 within 30 s", failed_at=9.0)
    decision = _decide(_allocation(_exit(ExitKind.KILLED), stop_kind=ExitKind.KILLED, failure=exit_report))
    assert (decision.outcome, decision.failure) == (None, exit_report)


def test_preempted_work_waits_again_and_loses_nothing() -> None:
    allocation = _allocation(_exit(ExitKind.PREEMPTED), stop_kind=ExitKind.PREEMPTED)
    decision = _decide(allocation, restarts=1, setbacks=1)
    assert (decision.outcome, decision.restarts, decision.infrastructure_failures) == (None, 1, 1)
    assert decision.delay_seconds == 0


def test_a_preemption_whose_grace_ran_out_is_one_too() -> None:
    allocation = _allocation(_exit(ExitKind.RUNNER_LOST), stop_kind=ExitKind.PREEMPTED)
    decision = _decide(allocation)
    assert (decision.outcome, decision.infrastructure_failures) == (None, 0)


def test_a_failure_during_a_preemption_is_a_failure() -> None:
    allocation = _allocation(_exit(ExitKind.USER_ERROR), stop_kind=ExitKind.PREEMPTED)
    assert _decide(allocation).restarts == 1


def test_a_runner_that_was_preempted_on_its_machine_is_queued_again() -> None:
    assert _decide(_allocation(_exit(ExitKind.PREEMPTED))).outcome is None


def test_killed_means_canceled() -> None:
    killed = _decide(_allocation(_exit(ExitKind.KILLED), stop_kind=ExitKind.KILLED), closing=Outcome.CANCELED)
    unasked = _decide(_allocation(_exit(ExitKind.KILLED)))
    failing = _decide(_allocation(_exit(ExitKind.SIGNAL), stop_kind=ExitKind.KILLED), closing=Outcome.CANCELED)
    assert {killed.outcome, unasked.outcome, failing.outcome} == {Outcome.CANCELED}
    assert killed.reason == "as asked"


def test_a_trial_that_its_searcher_closed_keeps_the_reason_also_where_it_completes_by_itself() -> None:
    """As one whose script ends with exit code 0 after the order to stop."""
    trial = Trial("1.1", 1, 1, closing=Outcome.COMPLETED, reason="its searcher stopped it")
    allocation = _allocation(_exit(ExitKind.COMPLETED), stop_kind=ExitKind.PREEMPTED)
    decision = decide(trial, allocation, RetryTerms(RULES, 100.0, 2, Outcome.COMPLETED, had_gateway=True))
    assert (decision.outcome, decision.reason) == (Outcome.COMPLETED, "its searcher stopped it")
    killed = decide(trial, allocation, RetryTerms(RULES, 100.0, 2, Outcome.CANCELED, had_gateway=True))
    assert (killed.outcome, killed.reason) == (Outcome.COMPLETED, "")


def test_a_failure_is_described_with_rank_and_agent() -> None:
    assert describe(ExitReport("a2", ExitKind.USER_ERROR, "ValueError: no", rank=3)) == (
        "rank 3 on agent a2: ValueError: no"
    )
    assert describe(ExitReport("a2", ExitKind.SIGNAL, rank=0, signal=11)) == "rank 0 on agent a2: ended by signal 11"
    assert describe(ExitReport("a2", ExitKind.USER_ERROR, exit_code=3)) == "agent a2: exit code 3"
    assert describe(ExitReport("a2", ExitKind.RUNNER_LOST)) == "agent a2: runner lost"


def test_backoff_is_bounded() -> None:
    assert [RULES.backoff(failures) for failures in (1, 2, 3, 4, 5, 50, 5000)] == [0, 1, 2, 4, 8, 8, 8]
    assert Rules().backoff(12) >= 300, "minutes"


@pytest.mark.parametrize("kind", [ExitKind.USER_ERROR, ExitKind.AGENT_LOST, ExitKind.PREEMPTED])
def test_a_task_has_one_attempt(kind: ExitKind) -> None:
    allocation = _allocation(_exit(kind, message="boom"))
    assert _decide(allocation).outcome is None
    decision = decide(Trial("1.1", 1, 1), allocation, RetryTerms(RULES, 100.0, 2, task_kind=TaskKind.COMMAND))
    assert decision.outcome is Outcome.FAILED
    assert decision.reason.endswith("; a command is not started again")
    assert decision.delay_seconds == 0.0


@pytest.mark.parametrize("kind", [ExitKind.START_FAILED, ExitKind.AGENT_LOST, ExitKind.KILLED])
def test_a_task_that_has_not_begun_anywhere_is_started_elsewhere(kind: ExitKind) -> None:
    late = ExitReport("a0", ExitKind.START_FAILED, "not accepted by a0 within 30 s", failed_at=9.0)
    unbegun = replace(_exit(kind), has_not_begun=True)

    def decided(*exits: ExitReport) -> RetryDecision:
        allocation = _allocation(*exits, stop_kind=ExitKind.KILLED, failure=late)
        return decide(Trial("1.1", 1, 1), allocation, RetryTerms(RULES, 100.0, 0, task_kind=TaskKind.COMMAND))

    assert decided(unbegun).outcome is None
    assert decided(_exit(kind)).outcome is Outcome.FAILED
    assert decided(unbegun, _exit(kind, 1)).outcome is Outcome.FAILED, "one member may have begun"


def test_a_task_that_completes_is_completed() -> None:
    allocation = _allocation(_exit(ExitKind.COMPLETED))
    decision = decide(Trial("1.1", 1, 1), allocation, RetryTerms(RULES, 100.0, 0, task_kind=TaskKind.SHELL))
    assert (decision.outcome, decision.reason) == (Outcome.COMPLETED, "")


_DDP = CandidateRow("ddp", "ddp", bytes={"total": 800}, step_seconds=1.0)
_ZERO1 = CandidateRow("zero1", "zero1", bytes={"total": 600}, step_seconds=1.2)
_ZERO3 = CandidateRow("zero3", "zero3", bytes={"total": 900}, step_seconds=2.0)
_CHOICE = StrategyChoice("ddp", 2, (_DDP, _ZERO1, _ZERO3), 1000)


def _out_of_memory(
    text: str, batches: int | None = 3, started: int = 0, kind: ExitKind = ExitKind.OUT_OF_MEMORY
) -> RetryDecision:
    failed = replace(_exit(kind, 1, message="no room"), batches_completed=batches)
    allocation = _allocation(_exit(ExitKind.PEER_FAILED), failed)
    trial = Trial("1.1", 1, 1, restarts=2, strategy_choice_json=text)
    return step_down_if_it_helps(decide(trial, allocation, RetryTerms(RULES, 100.0, 2)), trial, allocation, started)


def test_auto_steps_down_once_where_memory_runs_out_in_the_first_steps() -> None:
    decision = _out_of_memory(_CHOICE.to_json())
    assert (decision.outcome, decision.restarts, decision.delay_seconds) == (None, 2, 0.0)
    assert decision.reason == "agent a1: no room; ddp needs too much memory, and auto goes on with less"
    assert decision.strategy == replace(_CHOICE, out_of_memory=("ddp",))
    # From a checkpoint after batch 100 the first steps are those up to 109.
    assert _out_of_memory(_CHOICE.to_json(), 109, 100).outcome is None
    assert _out_of_memory(_CHOICE.to_json(), None).outcome is None


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("", 3),
        ("no record", 3),
        (_CHOICE.to_json(), 10),
        (replace(_CHOICE, out_of_memory=("hsdp",)).to_json(), 3),
        (replace(_CHOICE, rows=(_DDP, _ZERO3)).to_json(), 3),
        (replace(_CHOICE, rows=(_DDP, replace(_ZERO1, refusal="no"))).to_json(), 3),
        (replace(_CHOICE, choice="zero1").to_json(), 3),
    ],
    ids=["named", "unreadable", "late", "second time", "none smaller", "smaller refused", "smallest"],
)
def test_lack_of_memory_is_final_otherwise(text: str, batches: int) -> None:
    decision = _out_of_memory(text, batches)
    assert (decision.outcome, decision.strategy) == (Outcome.FAILED, None)
    choice = "zero1" if '"choice": "zero1"' in text else "ddp"
    told = (
        f"out of memory with {choice}, which auto has chosen, would come again"
        if text.startswith("{")
        else "out of memory would"
    )
    assert told in decision.reason


def test_other_failures_do_not_change_the_strategy() -> None:
    assert _out_of_memory(_CHOICE.to_json(), kind=ExitKind.USER_ERROR).strategy is None


def test_a_start_that_lacked_a_gateway_counts_as_nothing_and_starts_again_even_a_command() -> None:
    lacked = _exit(ExitKind.NO_GATEWAY, message="waits for a gateway, to fetch its code: none is registered")
    allocation = _allocation(lacked, _exit(ExitKind.PEER_FAILED, 1, failed_at=2.0))
    decision = _decide(allocation, restarts=2, setbacks=2, row=4)
    assert (decision.outcome, decision.failure) == (None, None)
    assert (decision.restarts, decision.infrastructure_failures, decision.failures_in_a_row) == (2, 2, 4)
    assert decision.delay_seconds == GATEWAY_PAUSE_SECONDS
    assert decision.reason == "agent a0: waits for a gateway, to fetch its code: none is registered"
    command = decide(Trial("1.1", 1, 1), _allocation(lacked), RetryTerms(RULES, 9.0, 0, task_kind=TaskKind.COMMAND))
    assert (command.outcome, command.reason) == (None, decision.reason)
    assert _decide(allocation, closing=Outcome.CANCELED).outcome is Outcome.CANCELED
    # A member that failed by itself before counts as always.
    first = _exit(ExitKind.START_FAILED, 1, failed_at=0.5)
    assert _decide(_allocation(lacked, first)).infrastructure_failures == 1


def test_starts_that_do_not_reach_a_registered_gateway_wait_longer_each_time_and_end_after_hours() -> None:
    unreached = _exit(ExitKind.NO_GATEWAY, message="waits for a gateway, to fetch its code: no answer")
    trial, delays, now = Trial("1.1", 1, 1), [], 100.0
    for _ in range(6):
        decision = decide(trial, _allocation(unreached), RetryTerms(RULES, now, 0, had_gateway=True))
        assert (decision.outcome, decision.restarts, decision.failing_since_at) == (None, 0, 100.0)
        assert decision.failure == unreached
        delays.append(decision.delay_seconds)
        trial = replace(
            trial,
            infrastructure_failures=decision.infrastructure_failures,
            failures_in_a_row=decision.failures_in_a_row,
            failing_since_at=decision.failing_since_at,
        )
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]
    now += RULES.give_up_seconds
    for task_kind in (None, TaskKind.COMMAND):
        last = decide(trial, _allocation(unreached), RetryTerms(RULES, now, 0, task_kind=task_kind, had_gateway=True))
        assert last.outcome is Outcome.FAILED
        assert last.reason.startswith("7 attempts in a row failed within 2.0 h for reasons outside of the trial")
    terms = RetryTerms(RULES, 9.0, 0, task_kind=TaskKind.COMMAND, had_gateway=True)
    command = decide(Trial("1.1", 1, 1), _allocation(unreached), terms)
    assert command.outcome is None
