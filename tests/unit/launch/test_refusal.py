"""The message about an exception that no code catches."""

from __future__ import annotations

import sys
from types import TracebackType

import pytest

import gangline.core
from gangline import InvalidHP
from gangline.cluster_info import ENVIRONMENT_KEY
from gangline.core import refusal
from gangline.core.link import Link
from gangline.domain.state import ExitKind
from gangline.errors import invalid


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Returns the arguments that the earlier hook receives."""
    seen: list[BaseException] = []

    def hook(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen.append(error)

    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.delenv("RANK", raising=False)
    return seen


def end_with(error: BaseException) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


def test_a_refusal_is_its_line(passed_on: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    refusal.install(Link())
    refusal.install(Link())
    end_with(invalid("x.y", "use less"))
    end_with(InvalidHP("too wide"))
    assert capsys.readouterr().err == "error: use less\nerror: too wide\n"
    assert passed_on == []


def test_a_rank_says_which_it_is(
    passed_on: list[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal.install(Link())
    monkeypatch.setenv("RANK", "3")
    end_with(invalid("x.y", "use less"))
    assert capsys.readouterr().err == "error: rank 3: use less\n"


def test_where_the_users_code_is_the_cause_it_is_shown(
    passed_on: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    refusal.install(Link())
    try:
        try:
            raise RuntimeError("shapes do not match")
        except RuntimeError as cause:
            raise invalid("x.y", "use less") from cause
    except Exception as error:  # noqa: BLE001  what no one catches
        end_with(error)
    output = capsys.readouterr().err
    assert "test_refusal.py" in output
    assert output.endswith("RuntimeError: shapes do not match\nerror: use less\n")


def test_other_exceptions_go_on_to_the_hook_before(passed_on: list[BaseException]) -> None:
    refusal.install(Link())
    error = ValueError("no")
    end_with(error)
    assert passed_on == [error]


def test_on_the_cluster_the_log_says_which_rank(
    passed_on: list[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_KEY, "{}")
    monkeypatch.setenv("RANK", "3")
    refusal.install(Link())
    end_with(invalid("x.y", "use less"))
    assert capsys.readouterr().err == "error: use less\n"


class _KeepingLink(Link):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[ExitKind | None, str, str]] = []

    def send_worker_failure(self, kind: ExitKind | None, message: str, traceback: str, error_code: str = "") -> None:
        self.told.append((kind, message, error_code))


def test_the_runner_is_told_of_any_exception(passed_on: list[BaseException]) -> None:
    link = _KeepingLink()
    refusal.install(link)
    end_with(invalid("x.y", "use less"))
    end_with(MemoryError("no"))
    assert link.told == [
        (ExitKind.CONFIGURATION_ERROR, "use less", "x.y"),
        (ExitKind.OUT_OF_MEMORY, "MemoryError: no", ""),
    ]


def test_the_core_api_installs_it(passed_on: list[BaseException]) -> None:
    with gangline.core.init():
        assert isinstance(sys.excepthook, refusal.RefusalHook)
