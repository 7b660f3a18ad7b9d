"""PURE: the table of architectures by strategy, as Markdown, and what a page has of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORKS = "works"
_BEGIN, _END = "<!-- architectures -->", "<!-- end of architectures -->"


@dataclass(frozen=True, slots=True)
class Row:
    """cells: by the strategy's name: `works`, or the line with which the strategy refuses the model."""

    name: str
    library: str
    cells: Mapping[str, str]


def to_markdown(rows: Sequence[Row], strategies: Sequence[str], versions: str) -> str:
    """Returns the table with a numbered list of the lines."""
    lines: list[str] = []
    for row in rows:
        for strategy in strategies:
            text = row.cells[strategy]
            if text != WORKS and text not in lines:
                lines.append(text)
    head = ["architecture", "library", *strategies]
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [
            WORKS if row.cells[name] == WORKS else f"refused ({lines.index(row.cells[name]) + 1})"
            for name in strategies
        ]
        table.append("| " + " | ".join([row.name, row.library, *cells]) + " |")
    notes = [f"{number}. `{line}`" for number, line in enumerate(lines, 1)]
    return "\n".join([_BEGIN, versions, "", *table, "", *notes, _END])


def parse(page: str) -> dict[str, dict[str, str]]:
    """Returns the cells that a page has, by architecture and strategy, with the whole lines."""
    text = page.partition(_BEGIN)[2].partition(_END)[0]
    notes = dict(line.split(". ", 1) for line in text.splitlines() if line[:1].isdigit())
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    head, *rows = table
    return {row[0]: {name: _whole(cell, notes) for name, cell in zip(head[2:], row[2:], strict=True)} for row in rows}


def _whole(cell: str, notes: Mapping[str, str]) -> str:
    if cell == WORKS:
        return WORKS
    return notes[cell.removeprefix("refused (").removesuffix(")")].strip("`")
