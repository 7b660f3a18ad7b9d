"""How many records of refused attempts a caller gets."""

from __future__ import annotations

import pytest

from services.gateway.audit.refusal_limit import MAX_CALLERS, OF_ACTORS, OF_ADDRESSES, Rates, RefusalLimit


@pytest.mark.parametrize("rates", [OF_ADDRESSES, OF_ACTORS])
def test_a_caller_gets_so_many_records_and_then_one_at_a_time(rates: Rates) -> None:
    limit = RefusalLimit(rates)
    taken = [limit.take("a", 0.0) for _ in range(rates.of_one + 5)]
    assert taken == [0] * rates.of_one + [None] * 5
    assert limit.take("b", 0.0) == 0
    assert limit.take("a", rates.seconds_of_one) == 5
    assert limit.take("a", rates.seconds_of_one) is None


@pytest.mark.parametrize("rates", [OF_ADDRESSES, OF_ACTORS])
def test_many_callers_share_one_budget_and_little_memory(rates: Rates) -> None:
    limit = RefusalLimit(rates)
    taken = [limit.take(f"10.0.{number // 256}.{number % 256}", 0.0) for number in range(2 * MAX_CALLERS)]
    assert sum(each is not None for each in taken) == rates.of_all
    assert len(limit) == MAX_CALLERS
