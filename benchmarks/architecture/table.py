"""PURE: the results of all architectures as records, as JSON, and as a part of docs/architectures.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
EQUAL, REFUSED, MISSING = "equal", "refused", "not run"


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one architecture under one strategy."""

    kind: str  # `equal`, `refused`, `not run` if the library is missing, or the name of a fault
    difference: float = 0.0  # the largest difference to one process, if equal
    text: str = ""  # the line of a refusal or a fault
    way_out: str = ""  # options with which a refused architecture trains as in one process

    @property
    def is_fault(self) -> bool:
        return self.kind not in (EQUAL, REFUSED, MISSING)


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one architecture."""

    name: str
    family: str
    library: str
    precision: str = "fp64"  # type of the model's numbers
    cells: Mapping[str, Cell] = field(default_factory=dict)  # by strategy


@dataclass(frozen=True, slots=True)
class Results:
    """The results of all architectures."""

    versions: Mapping[str, str]  # versions of torch and of the libraries
    rows: Sequence[Row]


def to_json(results: Results) -> str:
    """Returns a text with one line for each architecture and strategy."""
    lines = [f'{{"versions": {json.dumps(results.versions)},', '"rows": [']
    for place, row in enumerate(results.rows):
        head = {"name": row.name, "family": row.family, "library": row.library, "precision": row.precision}
        cells = [f"  {json.dumps(name)}: {json.dumps(_plain(cell))}" for name, cell in row.cells.items()]
        end = "," if place + 1 < len(results.rows) else ""
        lines += [json.dumps(head)[:-1] + ', "cells": {', ",\n".join(cells), f"}}}}{end}"]
    return "\n".join([*lines, "]}"]) + "\n"


def from_json(text: str) -> Results:
    values = json.loads(text)
    rows = [
        Row(**{**row, "cells": {name: Cell(**cell) for name, cell in row["cells"].items()}}) for row in values["rows"]
    ]
    return Results(values["versions"], rows)


def merge(recorded: Results, results: Results, names: Sequence[str], strategies: Sequence[str]) -> Results:
    """Returns the results of these architectures and strategies, the recorded ones where there are no others. A cell
    of which there is none has not run."""
    old, new = ({row.name: row for row in each.rows} for each in (recorded, results))
    rows = []
    for name in names:
        row = new.get(name) or old.get(name) or Row(name, "", "")
        cells = {**(old[name].cells if name in old else {}), **(new[name].cells if name in new else {})}
        rows.append(replace(row, cells={strategy: cells.get(strategy, Cell(MISSING)) for strategy in strategies}))
    return Results(results.versions, rows)


def _plain(cell: Cell) -> dict[str, Any]:
    values = {"difference": cell.difference, "text": cell.text, "way_out": cell.way_out}
    return {"kind": cell.kind, **{name: value for name, value in values.items() if value}}


def to_page(results: Results) -> str:
    """Returns the part of the page: families by strategy, what each refusal says, and every architecture."""
    strategies = list(results.rows[0].cells)
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    count = f"{len(results.rows)} architectures, with {versions}."
    parts = [
        f"{count} Largest difference to one process: {_differences(results)}.",
        _table(["family", "architectures", *_codes(strategies)], _family_rows(results, strategies)),
        _refusals(results, strategies),
    ]
    return "\n\n".join([BEGIN, *parts, END])


def replace_part(page: str, part: str) -> str:
    """Returns the page with another part between its marks."""
    before, _, rest = page.partition(BEGIN)
    return before + part + rest.partition(END)[2]


def part_of(page: str) -> str:
    return BEGIN + page.partition(BEGIN)[2].partition(END)[0] + END


def _family_rows(results: Results, strategies: Sequence[str]) -> Iterable[list[str]]:
    for family in dict.fromkeys(row.family for row in results.rows):
        rows = [row for row in results.rows if row.family == family]
        yield [family, ", ".join(row.name for row in rows), *(_of_family(rows, name) for name in strategies)]


def _of_family(rows: Sequence[Row], strategy: str) -> str:
    """Returns how many of a family train, and which do not."""
    cells = {row.name: row.cells[strategy] for row in rows}
    others = {name: cell for name, cell in cells.items() if cell.kind != EQUAL}
    if not others:
        return "all" if len(rows) > 1 else "yes"
    count = f"{len(rows) - len(others)} of {len(rows)}" if len(others) < len(rows) else "none"
    named = (f"{name} {_outcome(cell)}" for name, cell in others.items())
    return f"{count}: {'; '.join(named)}" if len(rows) > 1 else _outcome(next(iter(others.values())))


def _outcome(cell: Cell) -> str:
    if cell.way_out:
        return f"with `{cell.way_out}`"
    return "no" if cell.kind == REFUSED else cell.kind


def _refusals(results: Results, strategies: Sequence[str]) -> str:
    """Returns one row for each line of refusal of a model that has no option as its way out."""
    rows = []
    for row in results.rows:
        by_text: dict[str, list[str]] = {}
        for name in strategies:
            cell = row.cells[name]
            if cell.kind == REFUSED and not cell.way_out:
                by_text.setdefault(cell.text, []).append(name)
        rows += [[row.name, ", ".join(_codes(names)), f"`{text}`"] for text, names in by_text.items()]
    return _table(["architecture", "strategy", "line"], rows)


def _differences(results: Results) -> str:
    found = []
    for precision in dict.fromkeys(row.precision for row in results.rows):
        rows = [row for row in results.rows if row.precision == precision]
        largest = max(cell.difference for row in rows for cell in row.cells.values())
        found.append(f"{largest:.0e} in {precision} ({len(rows)} architectures)")
    return ", ".join(found)


def _codes(names: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if not line.startswith("---") else f"|{line}|" for line in lines)
