"""Records of options: their fields stand in the place of the parameter, as if the command had written them itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from gangline.cli.option_record import spread


@dataclass(frozen=True)
class _Place:
    workspace: Annotated[str, typer.Argument(metavar="WORKSPACE")]
    name: Annotated[str, typer.Argument(metavar="NAME")]


@dataclass(frozen=True)
class _Options:
    labels: Annotated[list[str] | None, typer.Option("--label")] = None
    slots: Annotated[int, typer.Option(min=0)] = 1


@pytest.fixture
def program() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)

    @app.command("move-there")
    @spread(place=_Place, options=_Options)
    def move(place: _Place, options: _Options, is_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        """Move it."""
        print(place, options, is_json)

    return app


def test_fields_become_arguments_and_options(program: typer.Typer) -> None:
    result = CliRunner().invoke(program, ["lab", "vision", "--label", "a", "--label", "b", "--slots", "3", "--json"])
    assert result.output == f"{_Place('lab', 'vision')} {_Options(['a', 'b'], 3)} True\n"


def test_defaults_are_those_of_the_fields(program: typer.Typer) -> None:
    result = CliRunner().invoke(program, ["lab", "vision"])
    assert result.output == f"{_Place('lab', 'vision')} {_Options()} False\n"


def test_help_shows_them_in_the_order_of_the_fields(program: typer.Typer) -> None:
    text = CliRunner().invoke(program, ["--help"]).output
    places = [text.index(word) for word in ("WORKSPACE", "NAME", "Move it.", "--label", "--slots", "--json")]
    assert places == sorted(places)


@pytest.mark.parametrize("arguments", [["lab"], ["lab", "vision", "--slots", "-1"], ["lab", "vision", "--place", "x"]])
def test_mistakes_are_refused(program: typer.Typer, arguments: list[str]) -> None:
    assert CliRunner().invoke(program, arguments).exit_code == 2
