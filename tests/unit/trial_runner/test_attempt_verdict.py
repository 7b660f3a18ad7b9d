"""What schedulers that do not renew a lease say about who leads."""

from __future__ import annotations

import pytest

from services.trial_runner.attempt_verdict import SchedulerSign, is_leaderless

ABSENT, STANDBY, STUCK, SILENT = (
    SchedulerSign.ABSENT,
    SchedulerSign.STANDBY,
    SchedulerSign.STUCK,
    SchedulerSign.SILENT,
)


@pytest.mark.parametrize("signs", [(ABSENT,), (STANDBY,), (STUCK,), (ABSENT, STANDBY, STUCK)])
def test_no_scheduler_leads_where_all_of_them_show_it(signs: tuple[SchedulerSign, ...]) -> None:
    assert is_leaderless(signs)


@pytest.mark.parametrize("signs", [(), (SILENT,), (STANDBY, SILENT), (SILENT, ABSENT, ABSENT)])
def test_a_silent_scheduler_may_lead(signs: tuple[SchedulerSign, ...]) -> None:
    assert not is_leaderless(signs)
