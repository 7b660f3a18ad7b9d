"""Measures charts and logs of long histories: many curves over one another, a curve of a million points, a log of a
million lines.

Panning is a drag with the Shift key; the frames that the browser leaves out meanwhile are counted.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from playwright.sync_api import Browser, Page, StorageState

from benchmarks.page_part.window import Figure, time_action, time_visit, window
from benchmarks.stored_history import FIRST_AT, store_lines, store_reports

FIGURES = (
    Figure("curves: 100 trials, interactive", "ms", 1000.0),
    Figure("curves: dropped frames of a second of panning", "", 0.0),
    Figure("chart: 1,000,000 points, drawn", "ms", 1000.0),
    Figure("chart: a tenth of them, zoomed in", "ms", 1000.0),
    Figure("log: 1,000,000 lines, last ones", "ms", 1000.0),
    Figure("log: the line of a time in the middle", "ms", 1000.0),
    Figure("log: a text that only the first lines have", "ms"),
)
SPIKE = 1e6
METRIC = "accuracy"
PAN_SECONDS = 2.0
FRAME_MS = 1000 / 60
# Notes when each frame is drawn until `frames.isOver`.
_COUNT_FRAMES = """() => {
  window.frames_ = [];
  const note = (at) => { window.frames_.push(at); window.framesId = requestAnimationFrame(note); };
  window.framesId = requestAnimationFrame(note);
}"""
_DRAWN = "document.querySelector('figure canvas') !== null"
_CANVAS = ".u-over"


@dataclass(frozen=True, slots=True)
class Histories:
    """Experiments with long histories and their stored. Each of the trials of the search has `curve_points` points; the
    long one has one trial."""

    search_id: int
    long_id: int
    trials: int
    curve_points: int
    points: int
    lines: int


def fill(engine: sa.Engine, stored: Histories) -> None:
    """Writes the history of a search's trials, and of a trial with a long series and a long log."""
    for number in range(1, stored.trials + 1):
        store_reports(
            engine, f"{stored.search_id}.{number}", "validation", stored.curve_points, partial(_curve, number)
        )
    store_reports(engine, f"{stored.long_id}.1", "training", stored.points, partial(_series, stored.points // 2))
    store_lines(engine, f"{stored.long_id}.1", stored.lines)


def _curve(number: int, batch: int) -> dict[str, float]:
    return {METRIC: number + math.sin(batch)}


def _series(spike: int, batch: int) -> dict[str, float]:
    return {"loss": SPIKE if batch == spike else math.sin(batch)}


def run(browser: Browser, address: str, state: StorageState, stored: Histories) -> tuple[float, ...]:
    """Returns one value for each of FIGURES."""
    with window(browser, state) as page:
        curves = time_visit(page, f"{address}/experiments/{stored.search_id}?tab=curves", _DRAWN)
        dropped = _pan(page)
    with window(browser, state) as page:
        with page.expect_response("**/metrics/series?*") as answer:
            whole = time_visit(page, f"{address}/trials/{stored.long_id}.1", _DRAWN)
        _check_extremes(answer.value.json())
        part = _zoom(page, stored.points)
    with window(browser, state) as page:
        last = time_visit(page, f"{address}/trials/{stored.long_id}.1?tab=logs", _has_line(stored.lines))
        middle = stored.lines // 2
        jumped = time_action(page, _jump_to(FIRST_AT + middle), _has_line(middle))
        rare = time_action(page, _search("line 17 "), _has_line(17))
    return curves, dropped, whole, part, last, jumped, rare


def _check_extremes(answer: dict[str, Any]) -> None:
    greatest = max(max(series["values"]) for series in answer["series"])
    if greatest != SPIKE:
        raise SystemExit(f"the greatest value of the chart is {greatest}, not {SPIKE}: the spike is lost")


def _pan(page: Page) -> float:
    """Drags the curves to and fro; returns the frames that were left out in a second."""
    box = page.locator(_CANVAS).first.bounding_box()
    assert box is not None, "the chart is drawn"
    y, left, width = box["y"] + box["height"] / 2, box["x"], box["width"]
    page.mouse.move(left + width / 2, y)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.evaluate(_COUNT_FRAMES)
    began = time.monotonic()
    while (past := time.monotonic() - began) < PAN_SECONDS:
        # Half of the width, in a second.
        page.mouse.move(left + width * (0.5 - 0.25 * abs(past % 2 - 1)), y)
    frames: list[float] = page.evaluate("() => { cancelAnimationFrame(window.framesId); return window.frames_; }")
    page.mouse.up()
    page.keyboard.up("Shift")
    lost = sum(round((later - earlier) / FRAME_MS) - 1 for earlier, later in pairwise(frames))
    return lost / PAN_SECONDS


def _zoom(page: Page, num_points: int) -> float:
    """Shows a tenth of the points. The table behind the chart says when they are there."""
    page.locator("figure summary").first.click()
    page.locator("figure tbody tr").first.wait_for()
    first, last = num_points // 10 * 4, num_points // 10 * 5
    page.get_by_label("From batch").fill(str(first))
    page.keyboard.press("Tab")
    field = "[...document.querySelectorAll('label')].find((one) => one.textContent.startsWith('to batch'))"
    action = f"""
      const field = {field}.querySelector('input');
      field.value = '{last}';
      field.dispatchEvent(new Event('change', {{ bubbles: true }}))"""
    return time_action(
        page, action, f"[...document.querySelectorAll('figure tbody th')].at(-1)?.textContent === '{last}'"
    )


def _has_line(number: int) -> str:
    return f"[...document.querySelectorAll('.line bdi')].some((one) => one.textContent.startsWith('line {number} '))"


def _jump_to(at: float) -> str:
    # The field has the time of the browser's zone.
    return f"""
      const field = document.querySelector('input[type=datetime-local]');
      const at = new Date({1000 * at});
      field.value = new Date(at - 60000 * at.getTimezoneOffset()).toISOString().slice(0, 19);
      field.dispatchEvent(new Event('change', {{ bubbles: true }}))"""


def _search(text: str) -> str:
    field = "[...document.querySelectorAll('label')].find((one) => one.textContent.trim() === 'Text')"
    return f"""
      const field = {field}.querySelector('input');
      field.value = '{text}';
      field.dispatchEvent(new Event('change', {{ bubbles: true }}))"""
