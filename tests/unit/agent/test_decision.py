"""The agent's small decisions: recovery, obedience, patience, the words for an end, and whom to call next."""

from __future__ import annotations

from dataclasses import replace
from signal import Signals

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.state import ExitKind
from services.agent.allocations.command_check import refuse_epoch, refuse_slots, refuse_start
from services.agent.allocations.exit_judgement import (
    LINGER_SECONDS,
    Evidence,
    ProcessEnd,
    conclude,
    plan_kill_at,
    plan_signal,
)
from services.agent.allocations.journal_record import (
    JournalRecord,
    JournalStop,
    Process,
    mark_ended,
    mark_started,
    mark_stopping,
)
from services.agent.allocations.recovery import Findings, RecoveryVerdict, plan_recovery
from services.agent.connection.leader_choice import (
    LONGEST_DELAY_SECONDS,
    LeaderChoice,
    after_failure,
    after_learning,
    after_naming,
    after_new_leader,
    after_welcome,
    plan_delay,
)

ACCEPTED = JournalRecord("1.1.1", 7, ("a1/0",), accepted_at=100.0)
RUNNING = mark_started(ACCEPTED, Process(4242, 99, "boot"))
ENDED = mark_ended(RUNNING, {"exit": {}})
KILLED = JournalStop(ExitKind.KILLED, "alice asked for it", 200.0)
PREEMPTED = JournalStop(ExitKind.PREEMPTED, "a more urgent trial", 200.0)


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (Findings(ACCEPTED, has_spec=True, is_alive=False, has_exit=False), RecoveryVerdict.START),
        (Findings(ACCEPTED, has_spec=True, is_alive=True, has_exit=False), RecoveryVerdict.ADOPT),
        (Findings(ACCEPTED, has_spec=True, is_alive=False, has_exit=True), RecoveryVerdict.CONCLUDE),
        (Findings(ACCEPTED, has_spec=False, is_alive=False, has_exit=False, problem="spec"), RecoveryVerdict.CONCLUDE),
        (Findings(RUNNING, has_spec=True, is_alive=True, has_exit=False), RecoveryVerdict.ADOPT),
        (Findings(RUNNING, has_spec=False, is_alive=True, has_exit=False, problem="spec"), RecoveryVerdict.ADOPT),
        (Findings(RUNNING, has_spec=True, is_alive=False, has_exit=False), RecoveryVerdict.CONCLUDE),
        (Findings(ENDED, has_spec=True, is_alive=False, has_exit=True), RecoveryVerdict.KEEP),
        (Findings(ENDED, has_spec=True, is_alive=True, has_exit=True), RecoveryVerdict.KILL),
        (Findings(None, has_spec=True, is_alive=True, has_exit=False, problem="record"), RecoveryVerdict.ADOPT),
        (Findings(None, has_spec=False, is_alive=True, has_exit=False, problem="record"), RecoveryVerdict.KILL),
        (Findings(None, has_spec=True, is_alive=False, has_exit=False, problem="record"), RecoveryVerdict.CONCLUDE),
        (Findings(None, has_spec=True, is_alive=False, has_exit=False), RecoveryVerdict.DISCARD),
        (Findings(None, has_spec=False, is_alive=False, has_exit=True), RecoveryVerdict.CONCLUDE),
    ],
)
def test_recovery(findings: Findings, verdict: RecoveryVerdict) -> None:
    assert plan_recovery(findings) is verdict


def test_older_epoch_is_refused() -> None:
    assert refuse_epoch(7, 7) == refuse_epoch(8, 7) == ""
    assert refuse_epoch(6, 7) == "its epoch 6 is older than 7, so another scheduler has led since"


def test_start_that_is_not_for_this_agent() -> None:
    members = (Member("a1", 0, ("a1/0",)), Member("a2", 1, ("a2/0",)))
    allocation = Allocation("1.1.1", "1.1", 1, 1, 7, "default", members)
    assert refuse_start(allocation, 0, "a1", ["a1/0"]) == ""
    assert refuse_start(allocation, 1, "a1", ["a1/0"]) == "node rank 1 belongs to agent a2, not to a1"
    assert refuse_start(allocation, 2, "a1", ["a1/0"]) == "node rank 2 is not one of its 2 members"
    assert refuse_start(allocation, 0, "a1", []) == "agent a1 has no slot a1/0; it has none"


def test_slots_in_use_are_refused_unless_their_holder_is_about_to_go() -> None:
    refusal = "slot a1/0 is in use by trial 1.1 (attempt 1), which has no order to stop"
    assert refuse_slots([RUNNING], "2.1.1", ["a1/0"]) == refusal
    assert refuse_slots([mark_stopping(RUNNING, KILLED)], "2.1.1", ["a1/0"]) == ""
    assert refuse_slots([ENDED], "2.1.1", ["a1/0"]) == ""


def test_signals_and_patience() -> None:
    assert plan_signal(None) is None
    assert plan_signal(KILLED) is Signals.SIGQUIT
    assert plan_signal(PREEMPTED) is Signals.SIGTERM
    assert plan_kill_at(None, None) is None
    assert plan_kill_at(KILLED, None) == 200.0
    assert plan_kill_at(None, 50.0) == 50.0 + LINGER_SECONDS
    assert plan_kill_at(KILLED, 50.0) == 50.0 + LINGER_SECONDS


@pytest.mark.parametrize(
    ("record", "evidence", "kind", "words"),
    [
        (RUNNING, Evidence(ProcessEnd(signal=9)), ExitKind.RUNNER_LOST, ") ended without a report; signal 9 (SIGKILL)"),
        (RUNNING, Evidence(ProcessEnd(exit_code=3)), ExitKind.RUNNER_LOST, "exit code 3"),
        (RUNNING, Evidence(log_path="/x/runner.log"), ExitKind.RUNNER_LOST, "its log is /x/runner.log"),
        (RUNNING, Evidence(problem="x was unreadable"), ExitKind.RUNNER_LOST, "x was unreadable"),
        (ACCEPTED, Evidence(start_error="no memory"), ExitKind.START_FAILED, "no memory"),
        (mark_stopping(ACCEPTED, KILLED), Evidence(), ExitKind.KILLED, "before its trial runner started: alice"),
        (mark_stopping(ACCEPTED, PREEMPTED), Evidence(), ExitKind.PREEMPTED, "before its trial runner started"),
        (mark_stopping(RUNNING, KILLED), Evidence(was_killed=True), ExitKind.KILLED, "killed: alice asked for it"),
        (mark_stopping(RUNNING, PREEMPTED), Evidence(was_killed=True), ExitKind.RUNNER_LOST, "did not stop in time"),
        (mark_stopping(RUNNING, KILLED), Evidence(ended_unasked=True), ExitKind.RUNNER_LOST, "without a report"),
        (mark_stopping(RUNNING, PREEMPTED), Evidence(ProcessEnd(signal=15)), ExitKind.PREEMPTED, "was starting"),
        (mark_stopping(RUNNING, PREEMPTED), Evidence(ProcessEnd(signal=11)), ExitKind.RUNNER_LOST, "SIGSEGV"),
    ],
)  # fmt: skip
def test_words_for_an_end(record: JournalRecord, evidence: Evidence, kind: ExitKind, words: str) -> None:
    report = conclude(record, evidence, "a1", 300.0)
    assert report.kind is kind
    assert words in report.message
    assert (report.agent_id, report.ended_at, report.signal) == ("a1", 300.0, evidence.end.signal)


def test_route_goes_round() -> None:
    route = LeaderChoice(("s1", "s2"))
    addresses = []
    for _ in range(4):
        addresses.append(route.address)
        route = after_failure(route)
    assert addresses == ["s1", "s2", "s1", "s2"]


def test_route_follows_a_named_leader_once() -> None:
    route = after_naming(LeaderChoice(("s1", "s2")), "s9")
    assert route.address == "s9"
    assert after_failure(route).address == "s2"
    assert after_naming(route, "s9").address == "s2"


def test_route_stays_with_the_leader_that_welcomed_it() -> None:
    assert after_welcome(after_naming(LeaderChoice(("s1", "s2")), "s9")).address == "s9"


def test_route_goes_over_all_schedulers_that_are_alive() -> None:
    route = after_learning(after_failure(LeaderChoice(("s1", "s2"))), ("s3", "s2"))
    addresses = []
    for _ in range(4):
        addresses.append(route.address)
        route = after_failure(route)
    assert addresses == ["s2", "s3", "s1", "s2"]
    # The next one that was to be tried may have gone: then from the start.
    assert after_learning(replace(route, cursor=2), ()).address == "s1"


def test_new_leader_is_tried_at_once() -> None:
    route = after_new_leader(after_failure(after_failure(LeaderChoice(("s1", "s2")))), "s9")
    assert (route.address, plan_delay(route, 0.99)) == ("s9", 0.0)
    assert after_failure(route).address in ("s1", "s2")


def test_others_are_asked_for_a_newer_leader() -> None:
    assert after_welcome(LeaderChoice(("s1", "s2", "s3"))).others == ("s2", "s3")
    assert after_welcome(LeaderChoice(("s1",))).others == ("s1",), "there is no other"


def test_an_agent_without_a_leader_asks_at_least_twice_a_second() -> None:
    assert LONGEST_DELAY_SECONDS <= 0.5


def test_delay_grows_to_its_bound() -> None:
    route = LeaderChoice(("s1", "s2"))
    assert plan_delay(route, 0.99) == 0.0
    delays = []
    for _ in range(100):
        route = after_failure(route)
        delays.append(plan_delay(route, 1.0))
    assert delays == sorted(delays)
    assert delays[0] <= 0.2
    assert delays[-1] == LONGEST_DELAY_SECONDS
    assert plan_delay(route, 0.0) == LONGEST_DELAY_SECONDS / 2
    assert plan_delay(replace(route, failures=10**9), 1.0) == LONGEST_DELAY_SECONDS
