"""An attempt is announced once: late enough for a short command, early enough for its lease."""

from __future__ import annotations

from typing import Any, cast

import pytest

from services.trial_runner import announcement as announcement_module
from services.trial_runner.announcement import Announcement
from tests.support.wait import until


class Parts:
    """The running report, reporter, recorder and lease. calls: in their order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def note_up(self, rendezvous_at: float, ranks_up_at: float) -> None:
        self.calls.append(f"up, linked at {rendezvous_at:g}")

    def note(self, text: str) -> None:
        self.calls.append(text)

    def serve_metrics(self) -> None:
        self.calls.append("metrics")

    def open(self) -> None:
        self.calls.append("reports")

    def start(self, pids: object) -> None:
        self.calls.append("lease")

    def start_soon(self, pids: object) -> None:
        self.calls.append("lease soon")

    def send(self) -> None:
        self.calls.append("running")


def _make() -> tuple[Announcement, list[str]]:
    parts = Parts()
    part = cast(Any, parts)
    return Announcement(part, part, part, part, list), parts.calls


async def test_an_attempt_is_announced_after_a_moment_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement_module, "QUIET_SECONDS", 0.01)
    announcement, calls = _make()
    announcement.make_soon(1.0, 2.0)
    assert not announcement.is_made
    await until(lambda: announcement.is_made, "the announcement", 10)
    announcement.make()
    assert calls == ["up, linked at 1", "lease soon", "metrics", "reports", "lease"]


async def test_a_command_that_has_ended_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement_module, "QUIET_SECONDS", 0.0)
    announcement, calls = _make()
    announcement.cancel()
    announcement.make_soon(1.0, 2.0)
    announcement.cancel()
    other, _ = _make()
    other.make_soon(1.0, 2.0)
    await until(lambda: other.is_made, "a later one", 10)
    assert calls == ["up, linked at 1", "lease soon"]


async def test_an_attempt_announced_by_its_hook_reports_again_when_its_ranks_are_up() -> None:
    announcement, calls = _make()
    announcement.make_early(1.0, "the hook runs")
    assert calls == ["up, linked at 1", "the hook runs", "metrics", "reports", "lease"]
    announcement.make_soon(1.0, 2.0)
    announcement.cancel()
    assert calls[5:] == ["up, linked at 1", "running", "lease soon"]
