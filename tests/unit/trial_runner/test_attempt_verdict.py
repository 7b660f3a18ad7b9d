"""The answers about the leader from schedulers that do not renew a lease."""

from __future__ import annotations

import pytest

from services.trial_runner.attempt_verdict import SchedulerSign, is_leaderless

LEASE = 8.0
ABSENT, STANDBY, STUCK, SILENT = (
    SchedulerSign.ABSENT,
    SchedulerSign.STANDBY,
    SchedulerSign.STUCK,
    SchedulerSign.SILENT,
)


@pytest.mark.parametrize("signs", [(ABSENT,), (STANDBY,), (STUCK,), (ABSENT, STANDBY, STUCK)])
def test_no_scheduler_leads_where_all_of_them_show_it(signs: tuple[SchedulerSign, ...]) -> None:
    assert is_leaderless(signs, "a1", {"a1": 0.0, "a2": LEASE}, LEASE)


@pytest.mark.parametrize("signs", [(), (SILENT,), (STANDBY, SILENT), (SILENT, ABSENT, ABSENT)])
def test_a_silent_scheduler_may_lead(signs: tuple[SchedulerSign, ...]) -> None:
    assert not is_leaderless(signs, "a1", {"a1": 0.0, "a2": LEASE}, LEASE)


def test_a_refusal_is_no_sign_where_an_agent_hears_the_leader() -> None:
    """A firewall on the way may refuse in the place of a leader's host."""
    assert not is_leaderless([ABSENT], "a1", {"a2": LEASE / 4}, LEASE)
    assert is_leaderless([ABSENT], "a1", {"a2": LEASE / 2}, LEASE)
    assert is_leaderless([ABSENT], "a1", {}, LEASE)
