"""The scheduler's settings, as far as they are more than types and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gangline.errors import GanglineError
from services.scheduler.settings import PoolScheduler, ResourcePool, SchedulerSettings


def _backfill(**fields: object) -> object:
    return ResourcePool(pool_name="p", scheduler=PoolScheduler.model_validate(fields)).to_config().backfill


def test_backfill_is_on_call_where_the_queue_has_an_order_and_work_can_be_stopped() -> None:
    assert _backfill() == "on_call"
    assert _backfill(preemption=False) is True
    assert _backfill(type="fair_share") is True
    assert _backfill(preemption=True, type="round_robin") is True


def test_pools_preempt_unless_they_are_told_not_to() -> None:
    def is_on(**fields: object) -> bool:
        return ResourcePool(pool_name="p", scheduler=PoolScheduler.model_validate(fields)).to_config().is_preemption_on

    assert is_on(type="fair_share")
    assert not is_on(type="fair_share", preemption=False)
    assert is_on(type="priority")
    assert not is_on(type="priority", preemption=False)
    assert not is_on(type="round_robin")


def test_backfill_can_be_chosen() -> None:
    assert _backfill(preemption=True, backfill=True) is True
    assert _backfill(preemption=True, backfill=False) is False
    assert _backfill(preemption=True, backfill="on_call") == "on_call"


@pytest.mark.parametrize("fields", [{"preemption": False}, {"type": "fair_share"}])
def test_on_call_is_refused_where_nobody_can_be_called(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="backfill: 'on_call' needs a pool of type priority whose preemption"):
        _backfill(backfill="on_call", **fields)


def test_storage_is_no_chain() -> None:
    assert SchedulerSettings(storage_url="hdfs://namenode/x").storage_url == "hdfs://namenode/x"
    with pytest.raises(ValidationError, match="chains file systems with '::'"):
        SchedulerSettings(storage_url="simplecache::s3://bucket")


def test_name_of_a_pool_can_be_printed() -> None:
    with pytest.raises(ValidationError, match="it has the control character"):
        SchedulerSettings(storage_url="/x", resource_pools=[ResourcePool(pool_name="a\x9b")])


def test_a_trial_is_given_up_after_a_day_by_default() -> None:
    assert SchedulerSettings.load(["--storage-url", "/s"], {}).rules.give_up_seconds == 86400
    assert SchedulerSettings.load(["--storage-url", "/s", "--give-up-hours", "0.5"], {}).rules.give_up_seconds == 1800
    with pytest.raises(GanglineError, match="give_up_hours in the flags cannot be '-1'"):
        SchedulerSettings.load(["--storage-url", "/s", "--give-up-hours", "-1"], {})


def test_a_setting_of_an_earlier_version_names_what_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text('storage_url = "/s"\nmax_infrastructure_failures = 5\n')
    with pytest.raises(GanglineError) as caught:
        SchedulerSettings.load(["--settings", str(file)], {})
    assert caught.value.message == (
        f"max_infrastructure_failures in {file} is no setting any more; "
        "set give_up_hours, the hours for which a trial is tried again"
    )
