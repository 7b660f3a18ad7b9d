"""PURE: lays a table out for a terminal. Columns are shortened or left out, so that no line is wider than the terminal.

Every list has one table of `Column`s, which states what each column is worth. One mapping has the colours of states,
for all lists and for the live view. Output that is no terminal gets the whole table, because other programs read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gangline.domain.state import AgentState, Availability, CheckpointState, Outcome, State
from gangline.printable import to_line

GAP = "  "
ELLIPSIS = "…"


class Column(NamedTuple):
    """Describes a column."""

    heading: str
    importance: int | None = None  # the column with the smallest number is left out first; None if it is never left out
    # fewest cells to which it may be shortened; None if its cells are never cut, such as those of ids
    least: int | None = None
    is_state: bool = False  # whether its words are shown in the colours of states


class Cell(NamedTuple):
    """Holds a cell as it is shown, with its padding."""

    text: str
    state: str = ""  # word that decides the cell's colour; empty for none


def lay_out(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int | None, ellipsis: str = ELLIPSIS
) -> list[list[Cell]]:
    """Returns the cells of each line, headings first; `line_of` joins them. width: None for the whole table.

    No line is wider than the width, unless the columns that are never left out are wider than that by themselves. A
    column is shortened before another one is left out. A newline or another control character is shown as an escape,
    so that a row stays one line.
    """
    texts = [[to_line(str(cell)) for cell in row] for row in ([column.heading for column in columns], *rows)]
    natural = [max(map(cell_width, cells)) for cells in zip(*texts, strict=True)]
    kept = [(index, limit) for index, limit in enumerate(_fit(columns, natural, width)) if limit is not None]
    lines = []
    for number, row in enumerate(texts):
        states = [text if number and column.is_state else "" for column, text in zip(columns, row, strict=True)]
        lines.append([Cell(_sized(row[index], limit, ellipsis), states[index]) for index, limit in kept])
    return lines


def line_of(cells: Sequence[Cell]) -> str:
    """Returns a line of a table as text without colours."""
    return GAP.join(cell.text for cell in cells).rstrip()


def cell_width(text: str) -> int:
    """Returns the number of a terminal's cells that a text takes; a wide character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - only wide and accented letters need its tables

    return cell_len(text)


def shorten(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """Returns the text, cut with an ellipsis at its end if it takes more cells than the width."""
    if cell_width(text) <= width:
        return text
    room = width - len(ellipsis)
    if room <= 0:
        return ellipsis[: max(width, 0)]
    end = min(len(text), room)
    if not text.isascii():
        # A letter may take no cell, so more letters than cells may fit.
        end = 0
        while end < len(text) and cell_width(text[: end + 1]) <= room:
            end += 1
    return text[:end].rstrip() + ellipsis


def _fit(columns: Sequence[Column], natural: Sequence[int], width: int | None) -> list[int | None]:
    """Returns the width of each column; None for those that are left out."""
    kept = list(range(len(columns)))
    if width is None:
        return list(natural)
    while True:
        room = width - len(GAP) * (len(kept) - 1)
        widths = _shrunk({index: natural[index] for index in kept}, columns, room)
        droppable = [index for index in kept if columns[index].importance is not None]
        if sum(widths.values()) <= room or not droppable:
            return [widths.get(index) for index in range(len(columns))]
        kept.remove(min(droppable, key=lambda index: (columns[index].importance or 0, -index)))


def _shrunk(natural: dict[int, int], columns: Sequence[Column], room: int) -> dict[int, int]:
    """Returns the widths after the widest columns that may be shortened gave cells away, one cell after another."""
    widths = dict(natural)
    least = {index: columns[index].least for index in natural}
    excess = sum(widths.values()) - room
    while excess > 0:
        candidates = [index for index, fewest in least.items() if fewest is not None and widths[index] > fewest]
        if not candidates:
            return widths
        widest = max(candidates, key=lambda index: widths[index])
        others = [widths[index] for index in candidates if index != widest]
        # Down to the next widest one at once; equal columns then give one cell each in turn.
        step = max(1, widths[widest] - max([*others, least[widest] or 0]))
        step = min(step, excess, widths[widest] - (least[widest] or 0))
        widths[widest] -= step
        excess -= step
    return widths


def _sized(text: str, width: int, ellipsis: str) -> str:
    text = shorten(text, width, ellipsis)
    return text + " " * (width - cell_width(text))


# The names are those of rich's colours. A word without an entry has the terminal's own colour.
_COLOR_BY_STATE: dict[str, str] = {
    State.QUEUED: "yellow",
    State.STARTING: "cyan",
    State.RUNNING: "green",
    State.STOPPING: "magenta",
    State.PAUSED: "yellow",
    Outcome.COMPLETED: "blue",
    Outcome.FAILED: "red",
    Outcome.CANCELED: "bright_black",
    AgentState.ALIVE: "green",
    AgentState.LOST: "red",
    Availability.DRAINING: "yellow",
    Availability.DISABLED: "bright_black",
    CheckpointState.DELETING: "magenta",
}
_CODE_BY_COLOR = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "bright_black": 90}


def color_of(state: str) -> str:
    """Returns the colour of a state or an outcome, as rich names it; "default" for other words."""
    return _COLOR_BY_STATE.get(state, "default")


def painted(text: str, state: str) -> str:
    """Returns the text between the escape sequences of the state's colour. The text must be printable already."""
    code = _CODE_BY_COLOR.get(color_of(state))
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"
