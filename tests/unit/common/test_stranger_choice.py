"""The strangers' connections that a server closes when they take up too many places."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.common.connection.stranger_choice import choose_closed, places_of_strangers


def test_the_address_with_most_connections_loses_its_oldest() -> None:
    assert choose_closed(["a", "b", "a", "a", "c", "a"], 4) == [0, 2]
    assert choose_closed(["a", "b", "a", "b"], 2) == [0, 1]
    assert choose_closed(["a", "b"], 2) == []
    assert choose_closed(["a", "b"], 0) == [0, 1]


def test_a_part_of_what_admitted_callers_leave_is_for_strangers() -> None:
    assert places_of_strangers(4096, 0) == 3072
    assert places_of_strangers(4096, 4000) == 72
    assert places_of_strangers(4096, 5000) == 0


@given(st.lists(st.sampled_from("abcd"), max_size=60), st.integers(0, 60))
def test_no_address_loses_a_connection_while_another_has_more(addresses: list[str], most: int) -> None:
    closed = set(choose_closed(addresses, most))
    assert len(addresses) - len(closed) == min(most, len(addresses))
    kept = Counter(address for position, address in enumerate(addresses) if position not in closed)
    for position in closed:
        assert all(kept[addresses[position]] >= number - 1 for number in kept.values())
        newer = [other for other in range(position, len(addresses)) if addresses[other] == addresses[position]]
        assert kept[addresses[position]] < len(newer)
