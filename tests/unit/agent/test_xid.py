"""Which XIDs say that the GPU is at fault."""

from __future__ import annotations

import pytest

from services.agent.devices.xid import XidKind, classify


@pytest.mark.parametrize("code", [8, 13, 31, 43, 45, 68, 109, 137])
def test_application(code: int) -> None:
    assert classify(code).kind is XidKind.APPLICATION


@pytest.mark.parametrize("code", [63, 92, 94, 121, 154])
def test_contained(code: int) -> None:
    """The hardware's own remedy was enough: no GPU is taken out of use for it."""
    assert classify(code).kind is XidKind.CONTAINED


@pytest.mark.parametrize("code", [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 149, 156, 158])
def test_hardware(code: int) -> None:
    assert classify(code).kind is XidKind.HARDWARE


@pytest.mark.parametrize("code", [-1, 0, 1, 144, 999, 2**63])
def test_unknown(code: int) -> None:
    assert classify(code).kind is XidKind.UNKNOWN


def test_every_fault_of_the_hardware_says_what_to_do() -> None:
    xids = [classify(code) for code in range(1000)]
    silent = [xid.code for xid in xids if xid.kind is XidKind.HARDWARE and not xid.remedy]
    assert silent == []
    assert str(classify(79)) == "XID 79 (it has fallen off the bus)"


def test_memory() -> None:
    assert [code for code in range(1000) if classify(code).is_memory] == [48, 64, 95, 140, 171, 172]
    assert [code for code in range(1000) if classify(code).is_raised_by_contained] == [48, 171, 172]
