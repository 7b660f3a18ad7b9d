"""The table of searchers agrees with the names and keys of the section `searcher`."""

from __future__ import annotations

from typing import get_args

import pytest

from gangline.config import parse_config
from gangline.config.searcher import BUILT_SEARCHERS, SEARCHER_ROWS, Searcher, SearcherName
from gangline.errors import GanglineError

CONFIG = """
entrypoint: model:Trial
searcher: {{name: {name}, metric: loss, max_length: {{batches: 1}}, {more}}}
"""


def test_every_name_of_a_configuration_has_a_row() -> None:
    assert set(get_args(SearcherName)) == set(SEARCHER_ROWS)
    assert all(name == row.name for name, row in SEARCHER_ROWS.items())


def test_every_key_of_a_row_is_in_the_section_and_every_key_of_the_section_has_a_searcher() -> None:
    allowed = {key for row in SEARCHER_ROWS.values() for key in row.allowed}
    assert allowed == set(Searcher.model_fields)
    assert all(set(row.required) <= set(row.keys) for row in SEARCHER_ROWS.values())


@pytest.mark.parametrize("name", BUILT_SEARCHERS)
def test_a_searcher_takes_its_keys_and_no_others(name: str) -> None:
    row = SEARCHER_ROWS[name]
    if not row.required:
        parse_config(CONFIG.format(name=name, more=""))
    for key in row.required:
        with pytest.raises(GanglineError, match=f"searcher.{key} .*: required by the searcher '{name}', but missing"):
            parse_config(CONFIG.format(name=name, more=""))
    for extra in sorted({"max_trials", "stop_once"} - row.allowed):
        with pytest.raises(GanglineError, match=f"searcher.{extra} .*: has no meaning for the searcher '{name}'"):
            parse_config(CONFIG.format(name=name, more=f"{extra}: {'3' if extra == 'max_trials' else 'true'}"))
