"""The error that ends a rank is not replaced by one of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gangline.core.closing import close_side_output, ending


def failing(text: str) -> Callable[[], None]:
    def step() -> None:
        raise OSError(text)

    return step


def test_the_error_of_the_block_comes_before_those_of_its_end(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []
    with (
        pytest.raises(ValueError, match="first"),
        ending(the_trace=failing("second"), profile=failing("third"), last=lambda: closed.append(1)),
    ):
        raise ValueError("first")
    assert closed == [1]
    assert "the end of the the trace failed" in caplog.text
    assert "third" in caplog.text


def test_without_one_the_first_error_of_the_end_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []
    with pytest.raises(OSError, match="second"), ending(one=failing("second"), two=failing("third")):
        closed.append(1)
    assert closed == [1]
    assert "third" in caplog.text


def test_a_side_output_neither_fails_nor_holds_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()
    close_side_output("files", failing("full"))
    assert "files are not complete: OSError: full" in caplog.text
    close_side_output("files", lambda: gate.wait(30), seconds=0.01)
    assert "the storage has not taken them for 0.01 s" in caplog.text
    gate.set()
