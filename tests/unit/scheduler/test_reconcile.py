"""An agent's journal against the leader's records."""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.allocation import Allocation, ExitReport, Member
from gangline.domain.state import ExitKind, State
from services.scheduler.agents.lease_table import Leases
from services.scheduler.agents.reconcile import Reported, compare


def _expected(allocation_id: str, state: State, stop_kind: ExitKind | None = None) -> Allocation:
    members = (Member("a1", 0, ("a1/0",)),)
    return Allocation(allocation_id, "1.1", 1, 1, 5, "default", members, state, stop_kind=stop_kind)


def test_what_both_know_is_present() -> None:
    entry = Reported("1.1.1", State.RUNNING, 7.0)
    difference = compare("a1", [entry], [_expected("1.1.1", State.RUNNING)], 9.0)
    assert difference.present == (entry,)
    assert difference == replace(difference, ended=(), vanished=(), strangers=(), forgettable=())


def test_an_end_is_taken_over() -> None:
    report = ExitReport("a1", ExitKind.COMPLETED)
    difference = compare(
        "a1", [Reported("1.1.1", State.TERMINAL, 7.0, report)], [_expected("1.1.1", State.RUNNING)], 9.0
    )
    assert difference.ended == (("1.1.1", report),)


def test_what_nobody_expects_is_ended_then_forgotten() -> None:
    report = ExitReport("a1", ExitKind.KILLED)
    journal = [Reported("1.1.1", State.RUNNING), Reported("2.1.1", State.TERMINAL, 0.0, report)]
    difference = compare("a1", journal, [], 9.0)
    assert difference.strangers == ("1.1.1",)
    assert difference.forgettable == ("2.1.1",)


def test_a_start_that_never_arrived_is_sent_again() -> None:
    difference = compare("a1", [], [_expected("1.1.1", State.STARTING)], 9.0)
    assert not difference.vanished


def test_a_running_member_that_is_gone_is_lost() -> None:
    difference = compare("a1", [], [_expected("1.1.1", State.RUNNING)], 9.0)
    [(allocation_id, report)] = difference.vanished
    assert (allocation_id, report.kind, report.agent_id) == ("1.1.1", ExitKind.RUNNER_LOST, "a1")


def test_a_stopping_member_that_is_gone_has_obeyed() -> None:
    stopping = _expected("1.1.1", State.STOPPING, ExitKind.PREEMPTED)
    [(_, report)] = compare("a1", [], [stopping], 9.0).vanished
    assert report.kind is ExitKind.PREEMPTED


def test_leases_run_from_the_last_word_and_longer_under_a_new_leader() -> None:
    leases = Leases(["a1", "a2"], lease_seconds=15, grace_seconds=30, now=100.0)
    assert leases.expired(144.9) == []
    leases.renew("a1", 110.0)
    assert leases.expired(125.0) == ["a1"]
    assert leases.next_end == 125.0
    leases.end("a1")
    assert leases.expired(145.0) == ["a2"]


def test_after_a_time_in_which_nobody_was_listened_to_every_lease_is_whole_again() -> None:
    leases = Leases(["a1", "a2"], lease_seconds=15, grace_seconds=0, now=100.0)
    leases.renew("a2", 300.0)
    assert leases.is_over("a1", 290.0)
    leases.forgive(290.0)
    assert not leases.is_over("a1", 304.9)
    assert leases.expired(305.0) == ["a1"]
    assert leases.expired(315.0) == ["a1", "a2"]
