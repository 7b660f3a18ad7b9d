"""A standby's answer names the leader, and whoever reads it finds the address."""

from __future__ import annotations

import pytest

from services.common.referral import find_leader, word_referral


@pytest.mark.parametrize("address", ["10.0.0.1:8082", "[fe80::1]:8082", "gpu-head-1.example:8082", ""])
def test_what_is_worded_is_found(address: str) -> None:
    assert find_leader(f"this scheduler does not lead; {word_referral(address)}") == address


@pytest.mark.parametrize("message", ["", "the leader is away", "the leader is 10.0.0.1", "leader: 10.0.0.1:8082"])
def test_no_leader_is_named(message: str) -> None:
    assert find_leader(message) == ""
