"""Tables on a terminal: what is shortened, what is left out, and the width of wide characters."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from gangline.cli.output.table_layout import Column, cell_width, lay_out, line_of, shorten

COLUMNS = (Column("ID"), Column("NAME", 2, least=8), Column("STATE", 3, is_state=True), Column("AGE", 1))
LONG = "resnet-50-with-a-very-long-name"


def lines(rows: list[tuple[object, ...]], width: int | None) -> list[str]:
    return [line_of(cells) for cells in lay_out(COLUMNS, rows, width)]


def test_a_table_that_fits_is_whole() -> None:
    assert lines([(1, "digits", "RUNNING", "4 min")], 40) == ["ID  NAME    STATE    AGE", "1   digits  RUNNING  4 min"]


def test_without_a_terminal_a_table_is_whole() -> None:
    assert lines([(1, LONG, "RUNNING", "4 min")], None)[1] == f"1   {LONG}  RUNNING  4 min"


def test_a_long_name_is_shortened_before_a_column_is_left_out() -> None:
    assert lines([(1, LONG, "RUNNING", "4 min"), (12, "b", "QUEUED", "-")], 30) == [
        "ID  NAME        STATE    AGE",
        "1   resnet-50…  RUNNING  4 min",
        "12  b           QUEUED   -",
    ]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (28, ["ID  NAME      STATE    AGE", "1   resnet-…  RUNNING  4 min"]),
        (27, ["ID  NAME            STATE", "1   resnet-50-wit…  RUNNING"]),
        (20, ["ID  STATE", "1   RUNNING"]),
        (5, ["ID", "1"]),
    ],
)
def test_the_least_important_column_is_left_out_first(width: int, expected: list[str]) -> None:
    shown = lines([(1, LONG, "RUNNING", "4 min")], width)
    assert [line.split() for line in shown] == [line.split() for line in expected]
    assert max(map(len, shown)) <= width


def test_two_long_columns_share_the_room() -> None:
    columns = (Column("ID"), Column("A", 1, least=4), Column("B", 2, least=4))
    _, line = lay_out(columns, [(1, "a" * 40, "b" * 40)], 24)
    assert [len(cell.text) for cell in line] == [2, 9, 9]


def test_a_wide_character_takes_two_cells() -> None:
    _, wide, narrow = lines([(1, "日本語", "RUNNING", "-"), (2, "a", "QUEUED", "-")], None)
    assert cell_width("日本語") == 6
    assert cell_len(wide[: wide.index("RUNNING")]) == cell_len(narrow[: narrow.index("QUEUED")]) == 12


@pytest.mark.parametrize("text", ["abcdefgh", "日本語日本語", "e\u0301" * 8, "👩\u200d👩\u200d👧 family", "a日b本c語"])
@pytest.mark.parametrize("width", range(6))
def test_a_shortened_text_fits(text: str, width: int) -> None:
    shown = shorten(text, width)
    assert cell_width(shown) <= width
    assert shown == text or shown.endswith("…" if width else "")


def test_a_text_that_fits_is_not_cut() -> None:
    assert shorten("digits", 6) == "digits"
    assert shorten("日本", 4) == "日本"
    assert shorten("digits!", 6) == "digit…"
    assert shorten("digits!", 6, "...") == "dig..."


def test_headings_and_cells_hold_no_control_characters() -> None:
    (heading,), (cell,) = lay_out((Column("BEST \x1b[2Jx"),), [("a\nb\x1b]0;x\x07",)], 60)
    assert heading.text.isprintable()
    assert cell.text.isprintable()


def test_only_states_are_coloured() -> None:
    heading, row = lay_out(COLUMNS, [(1, "RUNNING", "RUNNING", "-")], 60)
    assert [cell.state for cell in heading] == [""] * 4
    assert [cell.state for cell in row] == ["", "", "RUNNING", ""]
