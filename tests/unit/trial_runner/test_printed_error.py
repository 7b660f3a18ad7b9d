"""An exception counts as the end of an output only if its traceback is the end of it."""

from __future__ import annotations

import pytest

from services.trial_runner.gang.printed_error import find_final_error, find_last_error, quote_last_line

HEADER = "Traceback (most recent call last):"
FRAMES = ('  File "train.py", line 3, in <module>', "    work()", "    ~~~~^^")
TRACE = (HEADER, *FRAMES, "ValueError: odd")
EXIT = (HEADER, '  File "launch.py", line 9, in <module>', "SystemExit: 1")
TORCHRUN = (
    "W1219 20:11:14.001 7 torch/distributed/elastic/multiprocessing/api.py:898] Sending process 8 closing signal",
    "E1219 20:11:14.164 7 torch/distributed/elastic/multiprocessing/api.py:870] failed (exitcode: 1) local_rank: 1",
    HEADER,
    '  File "/usr/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
    "train.py FAILED",
    "Root Cause (first observed failure):",
    "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    "=" * 60,
)


def marked(rank: int, lines: tuple[str, ...]) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


@pytest.mark.parametrize(
    "lines",
    [
        TRACE,
        ("step 1", *TRACE, "", ""),
        (HEADER, *FRAMES, "KeyError: 'x'", "", "The above exception was the direct cause:", "", *TRACE),
        (*TRACE, *EXIT),
        (*TRACE, *TORCHRUN),
        (*TRACE, "[W1219 20:11:14.7 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called"),
        (*TRACE, "/lib/resource_tracker.py:224: UserWarning: 1 leaked semaphore", "  warnings.warn('leaked')"),
        ("RuntimeError: Caught ValueError in DataLoader worker process 0.", f"Original {HEADER}", *FRAMES, TRACE[-1]),
        marked(3, TRACE),
        [line for pair in zip(marked(0, TRACE), marked(1, TRACE), strict=True) for line in pair],
    ],
)
def test_the_traceback_at_the_end_is_found(lines: tuple[str, ...]) -> None:
    assert find_final_error(lines) == ("ValueError: odd", "ValueError")


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("ValueError: odd",),
        (*TRACE, "skipped"),
        (*TRACE, "step 1", "step 2"),
        (*TRACE, "", "During handling of the above exception, another exception occurred:", "", *EXIT),
        (HEADER, *FRAMES),
        EXIT,
    ],
)
def test_an_exception_that_the_code_went_on_from_is_not_its_end(lines: tuple[str, ...]) -> None:
    assert find_final_error(lines) is None


def test_a_module_and_a_message_of_several_lines() -> None:
    lines = (HEADER, *FRAMES, "my.pkg.Odd: one", "  two")
    assert find_final_error(lines) == ("my.pkg.Odd: one", "Odd")
    assert find_final_error((*lines, "three")) is None
    assert find_last_error((*lines, "three")) == ("my.pkg.Odd: one", "Odd")
    group = (
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "x.py", line 1, in f',
        "  | Odd: (2)",
    )
    assert find_final_error((*group, "  +-+----", "    | ValueError: x", "    +----")) == ("Odd: (2)", "Odd")


def test_the_last_line_is_quoted_with_its_stream_where_both_have_one() -> None:
    assert quote_last_line(("a", "step 2", " ", "---")) == 'its last line was "step 2"'
    assert quote_last_line(EXIT, "step 2") == 'its last line was "step 2"'
    assert quote_last_line(()) == ""
    expected = 'its last line on standard error was "warn" and its last line on standard output was "step 2"'
    assert quote_last_line(("warn",), "step 2") == expected
    assert len(quote_last_line(("x" * 1000,))) < 340
