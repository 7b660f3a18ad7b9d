"""Warm gangs: when one is started anew."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import warm_gang
from benchmarks.warm_gang import Answer, Gangs


class _Gang:
    """A gang whose orders are answered at once, as the order has it."""

    started: list[_Gang]

    def __init__(self, *_: Any) -> None:
        self.orders: list[Any] = []
        self.is_ended = False
        self.started.append(self)

    def begin(self, order: Any) -> None:
        self.orders.append(order)

    def answers(self, _: float) -> list[Answer]:
        return [Answer(self.orders[-1])]

    def end(self) -> None:
        self.is_ended = True


def test_a_gang_is_started_anew_after_some_orders_and_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Gang, "started", [], raising=False)
    monkeypatch.setattr(warm_gang, "Gang", _Gang)
    monkeypatch.setattr(warm_gang, "_MOST_ORDERS", 3)
    gangs = Gangs(print)
    for order in ["done"] * 7 + ["refused", "done"]:
        gangs.begin(2, order)
        gangs.answers(2, 1.0)
    assert [len(gang.orders) for gang in _Gang.started] == [3, 3, 2, 1]
    assert [gang.is_ended for gang in _Gang.started] == [True, True, True, False]
    gangs.end()
    assert _Gang.started[-1].is_ended
