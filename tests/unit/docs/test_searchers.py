"""docs/searchers.md shows the example's preview as the command prints it, and names every searcher."""

from __future__ import annotations

import random
from pathlib import Path

from gangline.cli.creation.preview import _lines
from gangline.config import parse_config
from gangline.config.searcher import SEARCHER_ROWS
from services.scheduler.transition.submit_check import preview
from tests.support.source import ROOT

TEXT = (ROOT / "docs" / "searchers.md").read_text()
EXAMPLE = "examples/digits/adaptive.yaml"


def test_the_preview_of_the_example_is_the_printed_one() -> None:
    config, warnings = parse_config((ROOT / EXAMPLE).read_text())
    assert warnings == []
    printed = _lines(preview(config.model_dump_json(), 0, random.Random(1)), Path(EXAMPLE))
    command = f"$ gangline preview-search {EXAMPLE} --limit 0"
    assert "\n".join([command, *printed, "```"]) in TEXT


def test_every_searcher_has_a_row() -> None:
    assert [name for name in SEARCHER_ROWS if f"| `{name}` |" not in TEXT] == []
