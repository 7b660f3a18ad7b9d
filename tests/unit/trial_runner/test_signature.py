"""Failures that are alike have one signature; those that others may have caused have none."""

from __future__ import annotations

import pytest

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from services.trial_runner.gang.outcome import MAX_SIGNATURE_LENGTH, signature_of


def _signature(message: str, kind: ExitKind = ExitKind.USER_ERROR, signal: int | None = None) -> str:
    return signature_of(ExitReport("a1", kind, message, signal=signal))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("IndexError: index 17 is out of range", "IndexError: index 9 is out of range"),
        ("RuntimeError: <Model at 0x7f0012>", "RuntimeError: <Model at 0x7fffAB>"),
        ("OSError: no /tmp/run-1a2b3c4d/x", "OSError: no /tmp/run-99ff00aa/x"),
        ("ValueError: took 1.5e-3 s", "ValueError: took 2.5e-4 s"),
    ],
)
def test_what_changes_between_attempts_is_left_out(first: str, second: str) -> None:
    assert _signature(first) == _signature(second)


def test_other_errors_differ() -> None:
    words = {
        _signature("ValueError: bad batch"),
        _signature("ValueError: bad label"),
        _signature("KeyError: bad batch"),
    }
    assert len(words) == 3


def test_hangs_are_alike_whoever_stood_where() -> None:
    assert _signature("hung: rank 1", ExitKind.HANG) == _signature("hung: others", ExitKind.HANG) == "HANG"


@pytest.mark.parametrize("kind", sorted(set(ExitKind) - {ExitKind.USER_ERROR, ExitKind.SIGNAL, ExitKind.HANG}))
def test_what_the_code_did_not_do_has_none(kind: ExitKind) -> None:
    assert _signature("whatever", kind) == ""


def test_a_crash_has_one_and_a_kill_has_none() -> None:
    assert _signature("ended by signal 11 (SIGSEGV)", ExitKind.SIGNAL, 11)
    assert not _signature("ended by signal 9 (SIGKILL)", ExitKind.SIGNAL, 9)
    assert not _signature("ended by signal 15 (SIGTERM)", ExitKind.SIGNAL, 15)


def test_what_only_notices_that_another_rank_has_gone_has_none() -> None:
    assert not _signature("RuntimeError: [/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")


def test_it_is_short() -> None:
    assert len(_signature("ValueError: " + "x" * 10_000)) == MAX_SIGNATURE_LENGTH


def test_a_rank_that_was_killed_after_its_exception_has_failed_alike() -> None:
    """On a busy machine a rank may take longer to end than the others wait for it. Then its exit code is unknown."""

    def signature(exit_code: int | None) -> str:
        return signature_of(ExitReport("a1", ExitKind.USER_ERROR, "KeyError: 3", exit_code=exit_code))

    assert signature(None) == signature(1)
    assert signature(7) != signature(1)
