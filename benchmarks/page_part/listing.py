"""Measures the list of many experiments: the code before the first paint, the first rows, further rows, another order
and another filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from playwright.sync_api import Browser, Page, StorageState

from benchmarks.listing import RARE, experiment_of, trial_of
from benchmarks.page_part.window import Figure, time_action, time_visit, window
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import Put

FIGURES = (
    Figure("list: gzipped code before the first paint", "kB", 60.0),
    Figure("list: requests for code before the first paint", "", 2.0),
    Figure("list: first view, address opened, empty cache", "ms", 1000.0),
    Figure("list: next 100 rows", "ms", 100.0),
    Figure("list: sort", "ms", 300.0),
    Figure("list: filter", "ms", 300.0),
)
# One in so many experiments has the label RARE.
RARE_EVERY = 1000
_SCROLL = "document.querySelector('[role=grid]').scrollTop = 150 * 36"
_SORT = "[...document.querySelectorAll('button.sort')].find((head) => head.textContent === 'ID').click()"
_FILTER = f"""
  const field = document.querySelector('search form input');
  field.value = 'labels = {RARE}';
  field.dispatchEvent(new Event('change', {{ bubbles: true }}))
"""
# Scripts and styles whose last byte came before the browser drew anything. The window's icon is asked for at any time,
# and nothing waits for it.
_CODE = """() => {
  const [first] = performance.getEntriesByName('first-paint');
  return performance.getEntriesByType('resource')
    .filter((one) => /[.](js|css)$/.test(one.name) && one.responseEnd <= first.startTime)
    .map((one) => ({ name: one.name, bytes: one.encodedBodySize }));
}"""


def records(number: int) -> Iterator[Put]:
    """Yields the experiments 1 to `number`, which have ended, with one trial each. They share one configuration, which
    takes long to parse."""
    first = experiment_of(1)
    for id_ in range(1, number + 1):
        labels = (RARE,) if id_ % RARE_EVERY == 0 else ()
        yield Put(keys.experiment(id_), wire.encode(replace(first, id=id_, name=f"digits-{id_}", labels=labels)))
        yield Put(keys.trial(f"{id_}.1"), wire.encode(trial_of(id_, 1)))


def run(browser: Browser, address: str, state: StorageState, newest_id: int) -> tuple[float, ...]:
    """Returns one value for each of FIGURES. newest_id: the number of experiments, all of which are in the list."""
    with window(browser, state) as page:
        first = time_visit(page, f"{address}/experiments", _row(0, newest_id))
        code = code_before_paint(page)
        scrolled = time_action(page, _SCROLL, _row(150, newest_id - 150))
        page.evaluate("document.querySelector('[role=grid]').scrollTop = 0")
        page.locator("[data-row='0']").wait_for()
        # By their ids, upwards.
        sorted_ = time_action(page, _SORT, _row(0, 1))
        rare = time_action(page, _FILTER, _row(0, RARE_EVERY))
    return sum(code.values()) / 1000, float(len(code)), first, scrolled, sorted_, rare


def _row(place: int, experiment_id: int) -> str:
    selector = f"[data-row='{place}'] input[aria-label='Select experiment {experiment_id}']"
    return f'document.querySelector("{selector}") !== null'


def code_before_paint(page: Page) -> dict[str, int]:
    """Returns the bytes, gzipped, of each script and style that the window had before its first paint, by address."""
    loaded: list[dict[str, Any]] = page.evaluate(_CODE)
    return {one["name"]: one["bytes"] for one in loaded}
