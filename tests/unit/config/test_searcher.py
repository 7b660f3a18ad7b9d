"""The table of searchers agrees with the names and keys of the section `searcher`."""

from __future__ import annotations

from typing import get_args

import pytest

from gangline.config import parse_config
from gangline.config.searcher import SEARCHER_ROWS, Searcher, SearcherName
from gangline.domain.settled.reading import settle_values
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


@pytest.mark.parametrize("name", SEARCHER_ROWS)
def test_a_searcher_takes_its_keys_and_no_others(name: str) -> None:
    row = SEARCHER_ROWS[name]
    if not row.required:
        parse_config(CONFIG.format(name=name, more=""))
    for key in row.required:
        others = ", ".join(f"{other}: {'tpe' if other == 'sampler' else 3}" for other in row.required if other != key)
        with pytest.raises(GanglineError, match=f"searcher.{key} .*: required by the searcher '{name}', but missing"):
            parse_config(CONFIG.format(name=name, more=others))
    for extra in sorted({"max_trials", "stop_once"} - row.allowed):
        with pytest.raises(GanglineError, match=f"searcher.{extra} .*: has no meaning for the searcher '{name}'"):
            parse_config(CONFIG.format(name=name, more=f"{extra}: {'3' if extra == 'max_trials' else 'true'}"))


ASHA = "adaptive_asha, max_trials: 8"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (f"name: {ASHA}, max_time: 8", r"searcher.time_metric \(.*\): required beside max_time, but missing"),
        (f"name: {ASHA}, time_metric: tokens", r"searcher.max_time \(.*\): required beside time_metric, but missing"),
        (f"name: {ASHA}", "searcher.max_length .*: required by the searcher 'adaptive_asha', but missing; time_metric"),
        (f"name: {ASHA}, max_length: 8, bracket_rungs: [2, 0]", "searcher.bracket_rungs .*: has 0; a bracket has 1 to"),
        (f"name: {ASHA}, max_length: 8, divisor: 1", "searcher.divisor .*: must be above 1, found 1"),
        (f"name: {ASHA}, max_length: 8, mode: eager", "searcher.mode .*aggressive"),
        (f"name: {ASHA}, max_length: 8, num_rungs: 3", "searcher.num_rungs .*has no meaning"),
        ("name: async_halving, max_trials: 8, max_length: 8", "searcher.num_rungs .*required"),
        ("name: async_halving, max_trials: 8, num_rungs: 2, max_length: 8, mode: standard", None),
        (
            "name: async_halving, max_trials: 8, num_rungs: 2, max_length: 8, mode: aggressive",
            "searcher.mode .*no meaning",
        ),
        (f"name: {ASHA}, time_metric: epochs, max_time: 8", None),
    ],
)
def test_keys_of_successive_halving(keys: str, message: str | None) -> None:
    text = f"entrypoint: python3 t.py\nsearcher: {{metric: loss, {keys}}}\n"
    if message is None:
        parse_config(text)
        return
    with pytest.raises(GanglineError, match=message):
        parse_config(text)


def test_a_trial_class_may_have_its_length_from_a_time_metric_that_is_a_unit() -> None:
    text = "entrypoint: model:Trial\nsearcher: {{metric: loss, name: {}, time_metric: {}, max_time: 8}}\n"
    parse_config(text.format(ASHA, "epochs"))
    with pytest.raises(GanglineError, match=r"searcher\.max_length .*: required for a trial class, but missing"):
        parse_config(text.format(ASHA, "tokens"))


def test_a_length_of_any_size_has_rungs() -> None:
    text = f"entrypoint: model:Trial\nsearcher: {{{{metric: loss, name: {ASHA}, divisor: 1000, max_length: {{}}}}}}\n"
    config, _ = parse_config(text.format(2**62))
    assert settle_values(config).searcher.brackets[0].rungs[-1].length == 2**62
