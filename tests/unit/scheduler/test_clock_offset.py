"""An agent's clock on the leader's, and the first failure of a gang whose hosts' clocks differ."""

from __future__ import annotations

from gangline.domain.allocation import Allocation, ExitReport, Member
from gangline.domain.state import ExitKind, State
from services.scheduler.agents.agent_session import NUM_RECENT, AgentClock
from services.scheduler.transition.retry import first_failure


def _clock(error_seconds: float, *latencies: float) -> AgentClock:
    clock = AgentClock()
    for number, latency in enumerate(latencies):
        clock.heard(1000.0 + number + error_seconds, 1000.0 + number + latency)
    return clock


def test_the_quickest_message_tells_best() -> None:
    assert round(_clock(60.0, 0.3, 0.002, 4.0).to_ours(1060.0), 6) == 1000.002


def test_a_clock_that_is_set_is_believed_after_some_messages() -> None:
    clock = _clock(60.0, 0.001)
    for number in range(NUM_RECENT):
        clock.heard(2000.0 + number, 2000.001 + number)
    assert round(clock.to_ours(2500.0), 6) == 2500.001


def test_who_tells_no_time_is_trusted() -> None:
    clock = AgentClock()
    clock.heard(0.0, 1000.0)
    report = ExitReport("a1", ExitKind.USER_ERROR, failed_at=7.0, ended_at=8.0)
    assert clock.exit_to_ours(report) == report


def test_what_never_was_has_no_time() -> None:
    report = ExitReport("a1", ExitKind.COMPLETED, ended_at=1060.0)
    converted = _clock(60.0, 0.0).exit_to_ours(report)
    assert (converted.failed_at, converted.ended_at) == (0.0, 1000.0)


def test_the_first_failure_is_found_whatever_the_clocks_say() -> None:
    """a1 failed a second before a2; a1's clock is a minute ahead, a2's an hour behind."""
    reports = [
        (_clock(60.0, 0.004, 0.001), ExitReport("a1", ExitKind.USER_ERROR, "first", failed_at=1500.0 + 60.0)),
        (_clock(-3600.0, 0.002), ExitReport("a2", ExitKind.USER_ERROR, "second", failed_at=1501.0 - 3600.0)),
    ]

    def first_of(exits: list[ExitReport]) -> str:
        members = (Member("a1", 0), Member("a2", 1))
        failure = first_failure(Allocation("1.1.1", "1.1", 1, 1, 5, "p", members, State.STOPPING, tuple(exits)))
        assert failure is not None
        return failure.message

    assert first_of([clock.exit_to_ours(report) for clock, report in reports]) == "first"
    assert first_of([report for _, report in reports]) == "second"
