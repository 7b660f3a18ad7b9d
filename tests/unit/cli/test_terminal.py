"""Text of others acts on no terminal: what is shown of control characters, and that no module writes by another way."""

from __future__ import annotations

import ast
import io
import json
import sys
from pathlib import Path

import pytest

import gangline.cli
from gangline.cli.output import live
from gangline.cli.output.table_layout import Column, lay_out, line_of
from gangline.cli.output.terminal import clean_output, complain, say, say_log
from gangline.cli.output.text import to_json
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State
from gangline.domain.view import ExperimentView, TrialView
from gangline.printable import find_unprintable, to_line, to_printable

_UNSAFE = [
    *map(chr, [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)]),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff",
]


@pytest.mark.parametrize("letter", _UNSAFE, ids=ascii)
def test_control_characters_are_shown_as_escapes(letter: str) -> None:
    shown = to_printable(f"a{letter}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.startswith("a\\")
    assert to_line(f"a{letter}b") == shown
    assert find_unprintable(f"a{letter}b") == shown[1:-1]


def test_ordinary_text_stays() -> None:
    text = "größer 日本語 é👍 [red]x[/red] \\x1b a\tb\nc"
    assert to_printable(text) == text
    assert to_line("a\tb\nc") == "a\\tb\\nc"
    assert find_unprintable("größer 日本語 👍") is None


def test_colours_of_a_log_are_left_out() -> None:
    assert to_printable("\x1b[1;31merror\x1b[0m: \x1b[2Jx") == "error: \\x1b[2Jx"


def test_row_of_a_table_stays_one_line() -> None:
    columns = (Column("NAME"), Column("STATE"))
    table = lay_out(columns, [("a\n7  fake", "RUNNING"), ("b\r", "x")], None)
    assert [line_of(cells) for cells in table] == ["NAME        STATE", "a\\n7  fake  RUNNING", "b\\r         x"]


def test_all_ways_out_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with clean_output():
        say(["a\nb\x1b[2J"])
        say_log("[1.1 rank\n0]", "first\tx\n[1.1 rank 1] second\x07")
        complain("error", "what\nerror: fake\x9b")
        print("by a library\x1b]0;x\x07")
    captured = capsys.readouterr()
    assert captured.out.split("\n") == [
        "a\\nb\\x1b[2J",
        "[1.1 rank\\n0] first\tx",
        "[1.1 rank\\n0] [1.1 rank 1] second\\x07",
        "by a library\\x1b]0;x\\x07",
        "",
    ]
    assert captured.err == "error: what\\nerror: fake\\x9b\n"


def test_json_is_ascii_and_valid() -> None:
    text = to_json({"name": "\x9b\u202eß", "metrics": {"loss": float("nan"), "best": [float("inf"), 1.5]}})
    assert text.isascii()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "name": "\x9b\u202eß",
        "metrics": {"loss": None, "best": [None, 1.5]},
    }


@pytest.mark.parametrize("num_trials", [1, 3])
def test_panel_draws_texts_of_others_as_text(monkeypatch: pytest.MonkeyPatch, num_trials: int) -> None:
    evil = "\x1b]52;c;eA==\x07\n[red]fake[/red]:smile:"
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "300")
    trials = tuple(
        TrialView(
            Trial(
                f"1.{number}",
                1,
                number,
                f'{{"lr": {number}, "{chr(92)}u001b[2J": {number}}}',
                state=State.RUNNING,
                restarts=1,
                reason=evil,
            )
        )
        for number in range(1, num_trials + 1)
    )
    view = ExperimentView(Experiment(1, f"name{evil}", "ann", "{}", "", State.RUNNING), trials)
    live.CleanConsole().print(live._panel(view, 0.0))
    drawn = screen.getvalue()
    assert to_printable(drawn) == drawn
    assert "[red]fake[/red]:smile:" in drawn
    assert not any(line.lstrip().startswith("[red]") for line in drawn.split("\n"))


def test_one_module_writes_to_the_terminal() -> None:
    """No other may print, open rich's Console, or name the standard streams."""
    folder = Path(gangline.cli.__file__).parent
    places = []
    for path in sorted(folder.rglob("*.py")):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            is_stream = isinstance(node, ast.Attribute) and ast.unparse(node) in (
                *("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"),
            )
            if is_stream or name in ("print", "Console", "typer.echo", "typer.secho", "os.write"):
                places.append(f"{path.name}:{getattr(node, 'lineno', 0)}")
    assert places == []
