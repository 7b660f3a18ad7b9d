"""The output in docs/simulator.md is the output of the program."""

from __future__ import annotations

import shlex

import pytest

from services.scheduler.simulator.__main__ import main
from tests.support.source import ROOT

BLOCKS = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8").split("```\n")[1::2]


@pytest.mark.parametrize(("command", "output"), list(zip(BLOCKS[::2], BLOCKS[1::2], strict=True)), ids=lambda _: "")
def test_the_output_is_true(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    program, verb, *arguments = shlex.split(command.replace("\\\n", " "))
    assert (program, verb) == ("gangline", "simulate")
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(output)
