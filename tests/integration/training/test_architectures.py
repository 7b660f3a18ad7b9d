"""A small part of benchmarks.architectures: some architectures of torch alone, and two of libraries if installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.architecture import library
from benchmarks.architecture.catalogue import find
from benchmarks.architecture.table import EQUAL, REFUSED, from_json
from benchmarks.architectures import RESULTS, STRATEGIES, Bench

_RECORDED = {row.name: row.cells for row in from_json(RESULTS.read_text()).rows}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.end()


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("Convolutions with BatchNorm", "zero2"),
        ("LSTM layers in a ModuleList", "pipeline Interleaved1F1B"),
        ("LSTM and Linear", "pipeline 1F1B"),
        ("CLIP", "zero3"),
        ("ResMLP", "pipeline 1F1B"),
    ],
)
def test_an_architecture_does_as_the_page_has_it(name: str, strategy: str, bench: Bench) -> None:
    architecture = find(name)
    if architecture.library in library.missing_libraries():
        pytest.skip(library.describe_missing())
    cell = bench.run_cell(architecture, *STRATEGIES[strategy])
    recorded = _RECORDED[name][strategy]
    assert (cell.kind, cell.text) == (recorded.kind, recorded.text)
    assert cell.kind in (EQUAL, REFUSED)
