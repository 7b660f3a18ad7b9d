"""The displayed configuration contains the user's own values, without hundreds of defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gangline.config import describe_config, parse_config

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_written_is_what_is_shown(path: Path) -> None:
    config, _ = parse_config(path.read_text("utf-8"))
    shown = describe_config(config.model_dump_json())
    assert yaml.safe_load(shown) == yaml.safe_load(path.read_text("utf-8"))
    assert parse_config(shown)[0] == config


def test_what_this_version_cannot_read_is_shown_whole() -> None:
    assert describe_config('{"searcher": {"name": "of tomorrow"}}') == "searcher:\n  name: of tomorrow"
    assert describe_config("") == "{}"
    assert describe_config("[]") == "{}"
    assert describe_config("no JSON") == "no JSON"
