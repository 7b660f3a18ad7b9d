"""How many records unknown callers get."""

from __future__ import annotations

from services.gateway.audit.refusal_limit import (
    MAX_ADDRESSES,
    RECORDS_OF_ADDRESS,
    RECORDS_OF_ALL,
    SECONDS_OF_ADDRESS,
    RefusalLimit,
)


def test_an_address_gets_so_many_records_and_then_one_at_a_time() -> None:
    limit = RefusalLimit()
    taken = [limit.take("a", 0.0) for _ in range(RECORDS_OF_ADDRESS + 5)]
    assert taken == [0] * RECORDS_OF_ADDRESS + [None] * 5
    assert limit.take("b", 0.0) == 0
    assert limit.take("a", SECONDS_OF_ADDRESS) == 5
    assert limit.take("a", SECONDS_OF_ADDRESS) is None


def test_many_addresses_share_one_budget_and_little_memory() -> None:
    limit = RefusalLimit()
    taken = [limit.take(f"10.0.{number // 256}.{number % 256}", 0.0) for number in range(2 * MAX_ADDRESSES)]
    assert sum(each is not None for each in taken) == RECORDS_OF_ALL
    assert len(limit) == MAX_ADDRESSES
