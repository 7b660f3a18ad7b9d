"""Measures the page in Chromium with 10,000 experiments: what it weighs, and how long the reader waits.

The cluster is whole and real; the records of ended experiments are written into its etcd. Each run opens a window
without a cache, signs in, and measures:

- the bytes and the requests for scripts and styles before the first paint, as they cross the network;
- the time from the order to open the list until its first row is drawn;
- the time from scrolling to the next 100 rows until one of them is drawn;
- the time from a click on a head, and from a new filter, until the first row is the right one.

Times are taken in the page itself: from the event to the frame after the row is in the document. Run it with
`python -m benchmarks.page`. It prints the median and the spread of the runs, and exits with 1 when a median misses its
target. Chromium is Debian's.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.cluster import running_cluster
from benchmarks.listing import MAX_PUTS, RARE, experiment_of, http_address, trial_of, wait_for_mirror
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
MISSING = "Chromium is not installed; install Debian's package chromium"
# Resolves with the milliseconds from the action until the row of an experiment is at a place, and is drawn.
MEASURE = """([row, number]) => new Promise((resolve) => {
  const began = performance.now();
  const selector = `[data-row='${row}'] input[aria-label='Select experiment ${number}']`;
  const look = () => {
    if (document.querySelector(selector) === null) setTimeout(look);
    else requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  };
  ACTION
  look();
})"""
OPEN = "document.querySelector('nav a[href$=\"/experiments\"]').click();"
SCROLL = "document.querySelector('[role=grid]').scrollTop = 150 * 36;"
SORT = "[...document.querySelectorAll('button.sort')].find((head) => head.textContent === 'ID').click();"
FILTER = """
  const field = document.querySelector('search form input');
  field.value = 'labels = rare';
  field.dispatchEvent(new Event('change', { bubbles: true }));
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. most: the target for the median."""

    name: str
    unit: str
    most: float


FIGURES = (
    Figure("gzipped bytes before the first paint", "kB", 60.0),
    Figure("requests before the first paint, beside the document", "", 2.0),
    Figure("first row", "ms", 1000.0),
    Figure("next 100 rows", "ms", 100.0),
    Figure("sort", "ms", 300.0),
    Figure("filter", "ms", 300.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if shutil.which(CHROMIUM) is None:
        raise SystemExit(MISSING)
    number = arguments.experiments
    print(describe_machine())
    with running_cluster(agents=1, slots=1) as (client, data):
        asyncio.run(_fill(data, number))
        wait_for_mirror(client, number, 1)
        address, token = http_address(data), client.login.token
        with running_browser() as browser:
            print(f"{number:,} experiments, Chromium {browser.version}")
            runs = [_run(browser, address, token, number) for _ in range(arguments.runs)]
    is_missed = False
    for figure, values in zip(FIGURES, zip(*runs, strict=True), strict=True):
        summary = summarise(values)
        verdict = "yes" if summary.p50 <= figure.most else "NO"
        is_missed |= verdict == "NO"
        print(
            f"{figure.name:52} median {summary.p50:7.1f} {figure.unit:2} ({summary.minimum:.1f} to "
            f"{summary.maximum:.1f}), at most {figure.most:.0f}: {verdict}",
            flush=True,
        )
    sys.exit(is_missed)


async def _fill(data: Path, number: int) -> None:
    """Writes ended experiments with one trial each. They share one configuration, which takes long to parse."""
    first = experiment_of(1)
    async with EtcdClient(EtcdSettings(endpoints=(f"unix:{data}/etcd-client:0",))) as etcd:
        puts: list[Put] = []
        for id_ in range(1, number + 1):
            labels = (RARE,) if id_ % 1000 == 0 else ()
            experiment = replace(first, id=id_, name=f"digits-{id_}", labels=labels)
            puts.append(Put(keys.experiment(id_), wire.encode(experiment)))
            puts.append(Put(keys.trial(f"{id_}.1"), wire.encode(trial_of(id_, 1))))
        for start in range(0, len(puts), MAX_PUTS):
            await etcd.commit(puts[start : start + MAX_PUTS])


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def _run(browser: Browser, address: str, token: str, number: int) -> tuple[float, ...]:
    """Returns one value for each of FIGURES."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/sign-in")
    page.get_by_label("User").fill("admin")
    # The icon of the window is asked for at any time, and nothing waits for it.
    sizes = [size for size in _resources(page) if size["name"].endswith((".js", ".css"))]
    page.get_by_label("Password").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Home").wait_for()
    first = _measure(page, OPEN, 0, number)
    scrolled = _measure(page, SCROLL, 150, number - 150)
    page.evaluate("document.querySelector('[role=grid]').scrollTop = 0")
    page.locator("[data-row='0']").wait_for()
    # By their ids, upwards.
    sorted_ = _measure(page, SORT, 0, 1)
    rare = _measure(page, FILTER, 0, 1000)
    context.close()
    return sum(size["bytes"] for size in sizes) / 1000, float(len(sizes)), first, scrolled, sorted_, rare


def _measure(page: Page, action: str, row: int, number: int) -> float:
    """Returns milliseconds. action: JavaScript. row: the place at which the experiment of this number then is."""
    milliseconds: float = page.evaluate(MEASURE.replace("ACTION", action), [row, number])
    return milliseconds


def _resources(page: Page) -> list[dict[str, Any]]:
    """What the window has loaded so far, beside the document."""
    entries: list[dict[str, Any]] = page.evaluate(
        "performance.getEntriesByType('resource').map((one) => ({ name: one.name, bytes: one.encodedBodySize }))"
    )
    return entries


if __name__ == "__main__":
    run_benchmark(main)
