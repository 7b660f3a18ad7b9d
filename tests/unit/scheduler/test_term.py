"""The timer of a term, which counts the slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from services.scheduler.leader.term import Term
from tests.support.virtual_time import VirtualTime


@pytest.mark.parametrize("began_at", [100.1, 100.4])
def test_slots_are_counted_at_the_same_times_in_all_processes(began_at: float) -> None:
    counted_at: list[float] = []
    term = cast("Term", SimpleNamespace(meter=SimpleNamespace(count=counted_at.append)))
    VirtualTime(began_at).run(Term._tick(term), 102.2 - began_at)
    assert counted_at == pytest.approx([100.5, 101.0, 101.5, 102.0])
