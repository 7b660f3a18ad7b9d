"""The recorded results of benchmarks.architectures cover its catalogue, and docs/architectures.md has what they say."""

from __future__ import annotations

import importlib.util
import re

import pytest

from benchmarks.architecture import library
from benchmarks.architecture.catalogue import list_architectures
from benchmarks.architecture.model import make_model, make_records
from benchmarks.architecture.table import (
    EQUAL,
    MISSING,
    REFUSED,
    Cell,
    Results,
    Row,
    from_json,
    merge,
    part_of,
    replace_part,
    to_json,
    to_page,
)
from benchmarks.architecture.trial import Order, train_alone
from benchmarks.architectures import PAGE, RESULTS, STRATEGIES
from benchmarks.random_program.judgment import Kind, judge
from benchmarks.warm_gang import Answer

_RESULTS = from_json(RESULTS.read_text())
_EXAMPLE = Results(
    {"torch": "2.13.0"},
    [
        Row("A", "decoder", "timm", cells={"ddp": Cell(EQUAL, 1e-16), "zero1": Cell(EQUAL)}),
        Row("B", "decoder", "timm", cells={"ddp": Cell(REFUSED, 2e-16, "a: b", "c: true"), "zero1": Cell("hang")}),
        Row("C", "sound", "peft", "fp32", {"ddp": Cell(REFUSED, text="a: b"), "zero1": Cell(EQUAL, 3e-7)}),
    ],
)


def test_the_page_has_the_recorded_results() -> None:
    assert part_of(PAGE.read_text()) == to_page(_RESULTS)


def test_the_results_are_those_of_the_whole_catalogue() -> None:
    recorded = [(row.name, row.family, row.library) for row in _RESULTS.rows]
    assert recorded == [(each.name, each.family, each.library) for each in list_architectures()]
    assert {row.library for row in _RESULTS.rows} == {*library.LIBRARIES, "torch"}
    assert len(_RESULTS.rows) >= 40
    assert all(list(row.cells) == list(STRATEGIES) for row in _RESULTS.rows)


def test_each_architecture_is_right_or_refused_in_one_line() -> None:
    for row in _RESULTS.rows:
        for strategy, cell in row.cells.items():
            assert cell.kind in (EQUAL, REFUSED), (row.name, strategy, cell)
            assert (cell.kind == REFUSED) == bool(cell.text), (row.name, strategy)
            assert "\n" not in cell.text, (row.name, strategy)


def test_the_page_has_a_way_out_of_each_refusal() -> None:
    """The table of ways out begins each row with words of the line."""
    ways = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text().partition("## Why")[2], re.MULTILINE)
    lines = {cell.text for row in _RESULTS.rows for cell in row.cells.values() if cell.text}
    assert len(ways) > 2
    assert [line for line in lines if not any(way in line for way in ways)] == []
    assert [way for way in ways if not any(way in line for line in lines)] == []


def test_results_are_the_same_behind_their_text() -> None:
    assert from_json(to_json(_EXAMPLE)) == _EXAMPLE


def test_a_partial_run_keeps_the_other_results() -> None:
    part = Results({"torch": "2.13.0"}, [Row("B", "decoder", "timm", cells={"zero1": Cell(EQUAL, 1e-15)})])
    merged = merge(_EXAMPLE, part, ["B", "A", "D"], ["ddp", "zero1"])
    assert [row.name for row in merged.rows] == ["B", "A", "D"]
    assert merged.rows[0].cells == {"ddp": _EXAMPLE.rows[1].cells["ddp"], "zero1": Cell(EQUAL, 1e-15)}
    assert merged.rows[1] == _EXAMPLE.rows[0]
    assert merged.rows[2].cells == {"ddp": Cell(MISSING), "zero1": Cell(MISSING)}


def test_a_page_counts_by_family_and_names_what_does_not_train() -> None:
    lines = to_page(_EXAMPLE).splitlines()
    assert "| decoder | A, B | 1 of 2: B with `c: true` | 1 of 2: B hang |" in lines
    assert "| sound | C | no | yes |" in lines
    assert [line for line in lines if "`a: b`" in line] == ["| C | `ddp` | `a: b` |"]
    assert "2e-16 in fp64 (2 architectures), 3e-07 in fp32 (1 architectures)" in lines[2]
    page = replace_part(f"before\n{to_page(_RESULTS)}\nbehind", to_page(_EXAMPLE))
    assert page == f"before\n{to_page(_EXAMPLE)}\nbehind"


def test_missing_libraries_are_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"timm": object(), "transformers": object()}
    monkeypatch.setattr(importlib.util, "find_spec", there.get)
    line = library.describe_missing()
    assert line.startswith("not installed: torchvision, diffusers, peft; their rows are not run.")
    assert "-r benchmarks/architecture/requirements.txt" in line
    assert "\n" not in line
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert library.describe_missing() == ""


def test_every_library_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in library.REQUIREMENTS.read_text().splitlines() if "==" in line}
    assert {*library.LIBRARIES} <= pinned
    assert "torch" not in pinned


def test_a_training_with_other_parts_differs() -> None:
    """A batch in two parts has other statistics than in one, which the comparison sees."""
    name = "Convolutions with BatchNorm"
    reference = train_alone(name, 2, 1)
    assert judge([Answer("done", value=train_alone(name, 2, 1))], reference).kind is Kind.EQUAL
    assert judge([Answer("done", value=train_alone(name, 1, 1))], reference).kind is Kind.SILENT
    assert reference.losses[0] > reference.losses[-1]


def test_an_order_knows_its_replicas_and_microbatches() -> None:
    assert (Order("A", 4, {"strategy": "hsdp"}).replicas, Order("A", 4, {"strategy": "hsdp"}).microbatches) == (4, 1)
    staged = Order("A", 4, {"strategy": "pipeline", "stages": 2, "microbatches": 2})
    assert (staged.replicas, staged.microbatches) == (2, 2)


def test_models_are_made_without_dropout_and_in_their_type() -> None:
    for architecture in list_architectures():
        if architecture.library == "torch":
            model = make_model(architecture)
            assert {parameter.dtype for parameter in model.parameters()} == {architecture.number_type}
            assert all(getattr(module, "p", 0.0) == 0.0 for module in model.modules())
            assert {len(tensor) for tensor in make_records(architecture, 4).values()} == {4}


def test_no_row_of_a_missing_library_counts_as_right() -> None:
    assert not Cell(MISSING).is_fault
    assert "not run" in to_page(Results({}, [Row("A", "decoder", "timm", cells={"ddp": Cell(MISSING)})]))
