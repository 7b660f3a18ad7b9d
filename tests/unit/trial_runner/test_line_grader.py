"""The level of a line: read from the usual formats of loggers, else from the stream; further lines follow the first."""

from __future__ import annotations

import logging

import pytest
import structlog

from gangline.domain.state import LogLevel
from services.trial_runner.delivery.line_grader import LineGrader, find_level

DEBUG, INFO, WARNING, ERROR, CRITICAL = LogLevel

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
ValueError: bad shape

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s)"""


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("DEBUG:train:x", DEBUG),
        ("ERROR:root:no such file", ERROR),
        ("WARNING train: slow loader", WARNING),
        ("INFO: [123] root: epoch 1", INFO),
        ("[ERROR] disk full", ERROR),
        ("[WARNING|trainer.py:640] 2026-11-23 09:14:22,123 >> no labels", WARNING),
        ("2026-11-23 09:14:22,123 - pkg.mod - ERROR - failed", ERROR),
        ("2026-11-23 09:14:22,123 - pkg.mod:func:12 - WARNING - slow", WARNING),
        ("[2026-11-23 09:14:22,123][__main__][CRITICAL] - out of disk", CRITICAL),
        ("2026-11-23 09:14:22.123 | WARNING  | mod:func:1 - x", WARNING),
        ("2026-11-23T09:14:22Z DEBUG x", DEBUG),
        ("[11/23/26 09:14:22] ERROR    x                 file.py:12", ERROR),
        ("09:14:22 WARN x", WARNING),
        ("2026-11-23 09:14:22 [error    ] failed   step=3", ERROR),
        ("[warning  ] slow", WARNING),
        ('{"event": "failed", "level": "error"}', ERROR),
        ("timestamp=2026-11-23T09:14:22 level=critical event=failed", CRITICAL),
        ("\x1b[31mERROR\x1b[0m: red", ERROR),
        ("W1123 09:14:22.123456 140 ProcessGroupNCCL.cpp:1250] slow", WARNING),
        ("[W socket.cpp:663] cannot connect", WARNING),
        ("[rank1]:[E1123 09:14:22.1 ProcessGroupNCCL.cpp:1] timeout", ERROR),
        ("gpu-1:12345:12399 [0] NCCL INFO ring 0", INFO),
        ("gpu-1:12345:12399 [0] misc/socket.cc:471 NCCL WARN no route", WARNING),
        ("Fatal Python error: Segmentation fault", CRITICAL),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_level_is_read_from_the_usual_formats(stream: str, line: str, level: LogLevel) -> None:
    assert LineGrader(stream).grade([line]) == [level]


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.5",
        "an ERROR in the middle of a sentence",
        "INFOrmation",
        "errors=3 level=7",
        '{"level": 3}',
        "2026-11-23 09:14:22 step 1 of 10",
        "",
        "x" * 65536,
    ],
)
def test_line_without_a_level_is_info_on_stdout_and_a_warning_on_stderr(line: str) -> None:
    assert LineGrader("stdout").grade([line]) == [INFO]
    assert LineGrader("stderr").grade([line]) == [WARNING]


def test_progress_bar_on_stderr_is_info() -> None:
    assert LineGrader("stderr").grade(["train:  10%|█         | 1/10 [00:00<00:09,  1.2it/s]"]) == [INFO]


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_traceback_is_an_error_as_a_whole_and_ends_with_its_exception(prefix: str) -> None:
    lines = [prefix + line for line in TRACEBACK.split("\n")]
    assert LineGrader("stderr").grade([*lines, "INFO:root:next"]) == [ERROR] * len(lines) + [INFO]


def test_state_outlives_a_batch_of_lines() -> None:
    grader = LineGrader("stderr")
    levels = [level for line in TRACEBACK.split("\n")[:4] for level in grader.grade([line])]
    assert levels == [ERROR] * 4


def test_indented_lines_have_the_level_of_their_message() -> None:
    lines = ["ERROR:root:several", "  reasons", "", "DEBUG:root:x", "\ttab"]
    assert LineGrader("stdout").grade(lines) == [ERROR, ERROR, ERROR, DEBUG, DEBUG]


@pytest.mark.parametrize("level", LogLevel)
@pytest.mark.parametrize(
    "layout",
    [
        logging.BASIC_FORMAT,
        "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
        "[%(asctime)s] %(levelname)s in %(module)s: %(message)s",
        "%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s",
        "%(levelname)-8s %(message)s",
        "%(asctime)s|%(levelname)s|%(message)s",
        "%(asctime)s [%(levelname)s] %(name)s: %(message)s",
    ],
)
def test_what_pythons_logging_prints(layout: str, level: LogLevel) -> None:
    record = logging.LogRecord("pkg.mod", getattr(logging, level), "mod.py", 12, "text ERROR", None, None)
    assert find_level(logging.Formatter(layout).format(record)) is level


@pytest.mark.parametrize("level", LogLevel)
def test_what_structlog_prints(level: LogLevel) -> None:
    stamp = structlog.processors.TimeStamper(fmt="iso")
    event = {"event": "saved", "level": level.value.lower(), "path": "/x"}
    for timed in (False, True):
        stamped = stamp(None, "", dict(event)) if timed else dict(event)
        for render in (
            structlog.dev.ConsoleRenderer(colors=False),
            structlog.processors.JSONRenderer(),
            structlog.processors.LogfmtRenderer(),
            structlog.processors.KeyValueRenderer(),
        ):
            assert find_level(str(render(None, "", dict(stamped)))) is level, render


@pytest.mark.parametrize("unit", ["a ", "1%|", "level ", "[", "| ", "1:2:", "09:14:22 ", "level=x ", "INFO", "\x1b[1"])
@pytest.mark.timeout(60)
def test_hostile_lines_are_graded(unit: str) -> None:
    """A search that goes back would take many minutes."""
    line = (unit * 65536)[:65536]
    assert len(LineGrader("stderr").grade([line] * 20)) == 20
