"""`gangline preview-search`: shows the trials that a configuration would make, before a submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import table_lines
from gangline.cli.shared import Json, Overrides, Seed, Template, connect, naming_file, show
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.domain.search import SearchPreview


def preview_search(
    config: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    *,
    seed: Seed = None,
    template: Template = "",
    overrides: Overrides = None,
    limit: Annotated[int, typer.Option(help="Show the first so many trials.", min=0, max=2000)] = 20,
    is_json: Json = False,
) -> None:
    """Show the trials that a search would make. `experiment create --seed` with the seed that is shown makes them."""
    text = read_text(config)
    show_preview(text, config, seed=seed, template=template, overrides=overrides, limit=limit, is_json=is_json)


def show_preview(
    text: str,
    config: Path,
    *,
    seed: int | None,
    template: str,
    overrides: list[str] | None,
    limit: int = 20,
    is_json: bool,
) -> None:
    """Prints the trials that a configuration would make, and their cost. config: the file of the text."""
    with naming_file(config), connect() as client:
        from gangline.config import parse_overrides  # noqa: PLC0415 - loads pydantic

        preview = client.preview_search(text, limit, seed, template, parse_overrides(overrides or ()))
    show(preview, is_json, lambda: _lines(preview, config))


def _lines(preview: SearchPreview, config: Path) -> list[str]:
    from gangline.cli.output.summary import differing, flatten, format_values  # noqa: PLC0415 - loads records
    from gangline.cli.output.text import count  # noqa: PLC0415 - with the above

    is_limited = 0 < preview.max_concurrent_trials < preview.num_trials
    at_once = f", at most {preview.max_concurrent_trials} at a time" if is_limited else ""
    lines = [f"{preview.searcher}: {count(preview.num_trials, 'trial')}{at_once}, seed {preview.seed}"]
    lines += _bracket_lines(preview)
    points = [flatten(json.loads(document)) for document in preview.hyperparameters_json]
    names = differing(points)
    rows = [
        (number, format_values({name: point[name] for name in names if name in point}))
        for number, point in enumerate(points, 1)
    ]
    if rows:
        lines += table_lines((Column("TRIAL"), Column("HYPERPARAMETERS", 1, least=16)), rows)
    if len(rows) < preview.num_trials:
        none = f"{count(preview.num_trials, 'trial')}, none of them shown"
        shown = f"and {preview.num_trials - len(rows)} more" if rows else none
        lines.append(f"{shown}; --limit {preview.num_trials} shows all")
    lines += _cost_lines(preview)
    return [*lines, f"to create them: gangline experiment create --seed {preview.seed} {config}"]


def _cost_lines(preview: SearchPreview) -> list[str]:
    """Returns what the search would hold of slots."""
    from gangline.cli.output.text import count  # noqa: PLC0415 - with the records

    if not preview.max_total:
        return []
    if not preview.pace_trial_id:
        return ["cost: not known, because no comparable trial has run yet"]
    least, about, most = (
        f"{preview.slot_hours(total):.3g}" for total in (preview.min_total, preview.expected_total, preview.max_total)
    )
    hours = f"about {about} slot-hours" + (f" ({least} to {most})" if least != most else "")
    pace = f"{preview.seconds_per_unit:.3g} s for each of the {preview.unit}"
    slots = f"{count(preview.slots_per_trial, 'slot')} a trial"
    return [f"cost: {hours}, {slots}, at the pace of trial {preview.pace_trial_id}: {pace}"]


def _bracket_lines(preview: SearchPreview) -> list[str]:
    """Returns how many trials of each bracket reach each rung, and the length of all trials together."""
    rows = [
        (
            number if index == 0 else "",
            bracket.num_trials if index == 0 else "",
            bracket.max_concurrent_trials if index == 0 else "",
            f"{rung.length} {preview.unit}",
            rung.min_trials,
            rung.expected_trials,
            rung.max_trials,
        )
        for number, bracket in enumerate(preview.brackets, 1)
        for index, rung in enumerate(bracket.rungs)
    ]
    lines: list[str] = []
    if rows:
        columns = (
            *(Column("BRACKET"), Column("TRIALS", 2), Column("AT ONCE", 1), Column("RUNG")),
            *(Column("AT LEAST", 3), Column("ABOUT"), Column("AT MOST", 4)),
        )
        lines += table_lines(columns, rows)
        lines.append(
            f"all trials: about {preview.expected_total} {preview.unit}, at least {preview.min_total}, at most "
            f"{preview.max_total}"
        )
    elif preview.max_total:
        lines.append(f"all trials: {preview.max_total} {preview.unit}")
    return lines
