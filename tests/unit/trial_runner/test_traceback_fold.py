"""Tracebacks in reports show the user's code, the error and its causes; frames of libraries are one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.trial_runner.ranks.traceback_fold import fold_tracebacks

CODE = "/data/agents/a/allocations/7.1.1/code"
TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
OWN = "/opt/gangline/pytorch/training/loop.py"


def frame(file: str, line: int, function: str = "forward") -> list[str]:
    return [
        f'  File "{file}", line {line}, in {function}',
        "    return self.call(input)",
        "           ^^^^^^^^^^^^^^^^",
    ]


HEADER = "Traceback (most recent call last):"


def test_frames_of_libraries_are_one_line_and_paths_are_relative() -> None:
    lines = [
        "INFO: training",
        HEADER,
        *frame(f"{CODE}/model_def.py", 28, "train_batch"),
        *frame(TORCH, 1778),
        *frame(TORCH, 1789),
        *frame(f"{CODE}/nets/block.py", 3),
        *frame(TORCH, 10),
        *frame(OWN, 12),
        *frame("/usr/lib/python3.11/threading.py", 5),
        "RuntimeError: shapes cannot be multiplied",
        "  with a second line",
        "after the end",
    ]
    assert fold_tracebacks(lines, (CODE,)) == [
        "INFO: training",
        HEADER,
        *frame("model_def.py", 28, "train_batch"),
        "  ... 2 frames of torch",
        *frame("nets/block.py", 3),
        "  ... 3 frames of torch, gangline, python",
        "RuntimeError: shapes cannot be multiplied",
        "  with a second line",
        "after the end",
    ]


def test_a_cause_keeps_its_error() -> None:
    between = ["KeyError: 'x'", "", "The above exception was the direct cause of the following exception:", ""]
    lines = [HEADER, *frame(f"{CODE}/a.py", 1), *between, HEADER, *frame(TORCH, 1), *frame(f"{CODE}/a.py", 2), "E: y"]
    assert fold_tracebacks(lines, ("/elsewhere", CODE)) == [
        HEADER,
        *frame("a.py", 1),
        *between,
        HEADER,
        "  ... 1 frame of torch",
        *frame("a.py", 2),
        "E: y",
    ]


def test_a_traceback_without_the_users_code_stays_whole() -> None:
    lines = [HEADER, *frame(TORCH, 1), *frame(OWN, 2), "RuntimeError: inside"]
    assert fold_tracebacks(lines, (CODE,)) == lines


def test_the_place_of_a_syntax_error_stays() -> None:
    place = [f'  File "{CODE}/broken.py", line 3', "    def f(:", "          ^"]
    lines = [HEADER, *frame("<frozen importlib._bootstrap>", 1), *place, "SyntaxError: invalid syntax"]
    shown = ['  File "broken.py", line 3', *place[1:]]
    assert fold_tracebacks(lines, (CODE,)) == [HEADER, "  ... 1 frame of python", *shown, lines[-1]]


def test_a_script_that_was_started_by_its_name_is_the_users() -> None:
    lines = [HEADER, *frame("train.py", 9, "<module>"), *frame(TORCH, 1), "ValueError: x"]
    assert fold_tracebacks(lines, (CODE,)) == [*lines[:4], "  ... 1 frame of torch", "ValueError: x"]


_LINES = st.lists(
    st.sampled_from(
        [HEADER, *frame(f"{CODE}/a.py", 1), *frame(TORCH, 2), "ValueError: x", "", "  indented", '  File "', "text"]
    ),
    max_size=40,
)


@given(_LINES)
def test_nothing_but_frames_is_lost_and_no_line_is_made_longer(lines: list[str]) -> None:
    folded = fold_tracebacks(lines, (CODE,))
    assert len(folded) <= len(lines)
    assert [line for line in folded if not line.startswith("  ")] == [
        line for line in lines if not line.startswith("  ")
    ]
