"""A list on a terminal: no line is wider than the terminal, and no id is cut, whatever the rows are."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.cells import cell_len

from gangline.cli import agent, checkpoint, experiment, fusion
from gangline.cli.output import job_summary, top_screen
from gangline.cli.output.table_layout import Column, lay_out, line_of
from gangline.cli.task import task
from gangline.printable import to_line
from tests.support.examples import examples

LISTS = {
    "experiment": experiment._COLUMNS, "task": task._COLUMNS, "job": job_summary.COLUMNS,
    "agent": agent._AGENT_COLUMNS, "slot": agent._SLOT_COLUMNS, "checkpoint": checkpoint._COLUMNS,
    "fusion": fusion._COLUMNS, "top": top_screen.COLUMNS,
}  # fmt: skip
IDS = st.text("abcdefghijklmnop0123456789.-/", min_size=1, max_size=40)
CELLS = st.one_of(
    st.text(max_size=60),
    st.text("日本語한글abc e\u0301\u200d👩👧\ufe0f", max_size=80),
    st.text("abcdef -", max_size=200),
    st.integers(),
)


@pytest.mark.parametrize("name", LISTS)
@settings(deadline=None, max_examples=examples(60))
@given(st.data(), st.integers(40, 200))
def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut(name: str, data: st.DataObject, width: int) -> None:
    columns: tuple[Column, ...] = LISTS[name]
    row = st.tuples(*(IDS if column.least is None else CELLS for column in columns))
    rows = data.draw(st.lists(row, max_size=5))
    headings, *lines = lay_out(columns, rows, width)
    assert all(cell_len(line_of(cells)) <= width for cells in (headings, *lines))
    shown = [cell.text.strip() for cell in headings]
    assert {column.heading for column in columns if column.importance is None} <= set(shown)
    uncut = {column.heading: index for index, column in enumerate(columns) if column.least is None}
    for cells, values in zip(lines, rows, strict=True):
        for heading, cell in zip(shown, cells, strict=True):
            assert heading not in uncut or cell.text.rstrip() == values[uncut[heading]]


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, CELLS, CELLS), max_size=5))
def test_a_table_without_a_terminal_is_whole(rows: list[tuple[str, object, object]]) -> None:
    columns = (Column("ID"), Column("NAME", 1, least=8), Column("WHY", 2, least=8))
    _, *lines = lay_out(columns, rows, None)
    shown = [[cell.text.rstrip() for cell in cells] for cells in lines]
    assert shown == [[to_line(str(value)).rstrip() for value in row] for row in rows]
