"""Names that act on a terminal are refused, by the CLI as by the services; other texts are free."""

from __future__ import annotations

import json

import pytest

from gangline.config import check_config, parse_config
from gangline.errors import GanglineError

_MINIMAL = "entrypoint: model_def:Trial\nsearcher: {name: single, metric: loss, max_length: 100}\n"
_METRIC = r'{name: single, metric: "a\x9b2J", max_length: 1}'


@pytest.mark.parametrize(
    ("text", "place", "letter"),
    [
        (_MINIMAL + r'name: "a\e]0;x\a"', "name (line 3)", r"\x1b"),
        (_MINIMAL + r'name: "a\nb"', "name (line 3)", r"\n"),
        (_MINIMAL + r'labels: [x, "a\u202Eb"]', "labels[1] (line 3)", r"\u202e"),
        (_MINIMAL + r'workspace: "a\rb"', "workspace (line 3)", r"\r"),
        (_MINIMAL + r'project: "a\tb"', "project (line 3)", r"\t"),
        (_MINIMAL + r'resources: {resource_pool: "a\x7f"}', "resources.resource_pool (line 3)", r"\x7f"),
        (_MINIMAL + r'hyperparameters: {net: {"a\u2066b": 1}}', "hyperparameters (line 3)", r"\u2066"),
        (_MINIMAL + r'log_policies: [{name: "a\x01", pattern: x}]', "log_policies[0].name (line 3)", r"\x01"),
        (f"entrypoint: model_def:Trial\nsearcher: {_METRIC}\n", "searcher.metric (line 2)", r"\x9b"),
    ],
)
def test_names_with_control_characters_are_refused(text: str, place: str, letter: str) -> None:
    with pytest.raises(GanglineError) as failure:
        parse_config(text)
    assert failure.value.code == "config.invalid_value"
    assert failure.value.message == (
        f"{place}: has the control character {letter}; use letters, digits, spaces and signs that can be printed"
    )


def test_services_refuse_what_another_client_sends() -> None:
    document = json.loads(parse_config(_MINIMAL)[0].model_dump_json())
    with pytest.raises(GanglineError, match=r"^name: has the control character"):
        check_config(json.dumps({**document, "name": "a\nexperiment 8"}))


def test_other_texts_and_letters_are_free() -> None:
    text = r'name: "größe 日本語 👍"' + "\n" + r'description: "two\nlines\tand \e[1m"' + "\n"
    config, _ = parse_config(_MINIMAL + text + r'hyperparameters: {note: "a\nb"}')
    assert config.name == "größe 日本語 👍"
    assert config.description == "two\nlines\tand \x1b[1m"


def test_command_over_several_lines_gives_a_name_of_one() -> None:
    config, _ = parse_config("entrypoint: |\n  python train.py\n    --fast\nsearcher: {name: single, metric: loss}\n")
    assert config.name == "python train.py --fast"
