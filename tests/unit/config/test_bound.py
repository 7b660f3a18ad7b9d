"""Configurations that cost their reader more than they weigh, or that it cannot keep, are refused with one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from gangline.config import check_config, parse_config, read_config
from gangline.config.bound import MAX_ENTRIES, find_unusable
from gangline.errors import ErrorKind, GanglineError
from tests.support import hostile

BASE = yaml.safe_load(hostile.CONFIG)


@pytest.mark.parametrize(("text", "code", "part"), hostile.CONFIGS.values(), ids=hostile.CONFIGS)
def test_hostile_text_is_refused_with_one_line(text: str, code: str, part: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    assert caught.value.code == code
    assert part in caught.value.message
    assert caught.value.kind is ErrorKind.INVALID
    assert len(caught.value.message.splitlines()) == 1
    caught.value.message.encode()


@pytest.mark.parametrize(
    ("document", "code", "part"),
    [
        ({"data": {"x": 2**63}}, "config.invalid_value", "data.x: is an integer beyond 64 bits"),
        ({"data": {"x": ["\ud800"]}}, "config.invalid_value", "data.x[0]: holds half of a Unicode surrogate pair"),
        ({"data": {"\ud800": 1}}, "config.invalid_value", "holds half of a Unicode surrogate pair"),
        ({"data": {"x": float("nan")}}, "config.invalid_value", "data.x: is nan, which is no finite number"),
        ({"data": {"x": "y" * 300_000}}, "config.too_large", "(128 KiB) are allowed"),
        ({"data": {"x": [1] * 30_000}}, "config.too_large", "at most 20000 are allowed"),
    ],
    ids=["integer", "surrogate", "surrogate in a key", "nan", "text", "values"],
)
def test_hostile_document_is_refused_in_both_ways_in(document: dict[str, object], code: str, part: str) -> None:
    for refuse in (read_config, lambda values: check_config(json.dumps(values))):
        with pytest.raises(GanglineError) as caught:
            refuse(BASE | document)
        assert caught.value.code == code
        assert part in caught.value.message
        caught.value.message.encode()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 100_000, "config.too_large"),
        ('{"a": ' + "9" * 5000 + "}", "config.syntax"),
        ("{", "config.syntax"),
        ("\ud800", "config.syntax"),
        (" " * 300_000, "config.too_large"),
    ],
    ids=["nested", "digits", "cut", "surrogate", "long"],
)
def test_hostile_json_is_refused(text: str, code: str) -> None:
    with pytest.raises(GanglineError) as caught:
        check_config(text)
    assert caught.value.code == code


def test_aliases_within_the_limits_are_written_out() -> None:
    config, _ = parse_config(hostile.CONFIG + "data:\n  a: &a {x: 1}\n  b: {<<: *a, y: 2}\n  c: [*a, *a]\n")
    assert config.data == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


def test_character_beyond_the_first_plane_is_kept_in_a_document() -> None:
    config, _ = read_config(BASE | {"description": "\N{ROCKET}"})
    assert config.description == "\N{ROCKET}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "a0: &a0 [1]\n"
            + "".join(f"a{number}: &a{number} {'[' * 27}*a{number - 1}{']' * 27}\n" for number in range(1, 41)),
            "config.too_large",
        ),
        ("%YAML 1." + "1" * 5000 + "\n---\na: 1\n", "config.syntax"),
        ('a: "\\U7FFFFFFF"\n', "config.syntax"),
    ],
    ids=["aliases in a chain", "version", "character"],
)
def test_what_the_parser_itself_stumbles_over_is_refused(text: str, code: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    assert caught.value.code == code
    assert len(caught.value.message.splitlines()) == 1


def test_entries_of_a_list_of_settings_are_limited() -> None:
    assert find_unusable({"labels": ["x"] * MAX_ENTRIES, "data": {"a": [1] * (MAX_ENTRIES + 1)}}) is None
    refused: tuple[dict[str, Any], ...] = (
        {"labels": [{}] * (MAX_ENTRIES + 1)},
        {"environment": {"proxy_ports": [1] * (MAX_ENTRIES + 1)}},
    )
    for values in refused:
        found = find_unusable(values)
        assert found is not None
        assert found.text == f"has {MAX_ENTRIES + 1} entries, at most {MAX_ENTRIES} are allowed"
