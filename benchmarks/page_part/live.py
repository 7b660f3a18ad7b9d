"""Measures how late a rank's reports are on the screen while many windows show its trial, and what they cost the
gateway.

The trial is real. It names each report by its moment, as the number of its batch, and the table behind the chart shows
that number. A few windows are real; the streams of the others are read by clients with the very request that a window
has made, because fifty windows of Chromium need more than two cores.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
from playwright.sync_api import Browser, Page, Request, StorageState

from benchmarks.page_part.window import LIMIT_MS, Figure, window
from benchmarks.process import processor_seconds, wait_until
from benchmarks.statistic import summarise
from gangline.client import Client

FIGURES = (
    Figure("live: a report on the screen, p95", "ms", 1000.0),
    Figure("live: processor time of the gateway", "% of a core", 10.0),
)
_WORKLOAD = Path(__file__).parent.parent / "workload"
_CONFIG = """\
name: live
entrypoint: python3 moments.py
searcher: {{name: single, metric: loss, max_length: {{batches: 1000000000}}}}
hyperparameters: {{began: {began}, every: {every}}}
max_restarts: 0
"""
_RUN_SECONDS = 15.0
_START_SECONDS = 60.0
# Notes how long ago each report was made when it is drawn. Reports from before the first look are left out.
_NOTE = """(began) => {
  window.lateness = [];
  let last = null;
  const look = () => {
    const batches = [...document.querySelectorAll('figure tbody th')].map((head) => Number(head.textContent));
    const fresh = last === null ? [] : batches.filter((batch) => batch > last);
    if (batches.length > 0) last = batches.at(-1);
    const note = () => lateness.push(...fresh.map((batch) => Date.now() - began - batch));
    if (fresh.length > 0) requestAnimationFrame(() => setTimeout(note));
    setTimeout(look, 10);
  };
  look();
}"""


def run_all(
    browser: Browser, client: Client, address: str, state: StorageState, gateway: psutil.Process,
    *, num_runs: int, num_windows: int, num_streams: int, every: float,
) -> list[tuple[float, ...]]:  # fmt: skip
    """Returns values for FIGURES from each of some runs. every: seconds between two reports."""
    began = int(1000 * time.time())
    config = _CONFIG.format(began=began, every=every)
    experiment_id = client.create_experiment(config, _WORKLOAD).experiment.id
    trial_id = f"{experiment_id}.1"
    try:
        with ExitStack() as stack:
            pages = [stack.enter_context(window(browser, state)) for _ in range(num_windows)]
            streams = [_show(page, f"{address}/trials/{trial_id}") for page in pages]
            stack.enter_context(_reading(streams[0], client.login.token, num_streams))
            for page in pages:
                page.evaluate(_NOTE, began)
            return [_run(pages, gateway) for _ in range(num_runs)]
    finally:
        client.kill_experiment(experiment_id)


def _show(page: Page, address: str) -> str:
    """Opens the trial with the table of its chart; returns the address of the stream that the window reads."""

    def is_stream(request: Request) -> bool:
        return "/api/v1/stream?" in request.url and "metrics=" in request.url

    with page.expect_request(is_stream, timeout=LIMIT_MS) as request:
        page.goto(address)
    page.locator("figure summary").first.click()
    page.locator("figure tbody th").first.wait_for()
    return request.value.url


def _run(pages: list[Page], gateway: psutil.Process) -> tuple[float, ...]:
    for page in pages:
        page.evaluate("lateness.length = 0")
    before, began = processor_seconds(gateway), time.monotonic()
    # The windows go on by themselves; this waits in one of them, so that Playwright's events are read meanwhile.
    pages[0].wait_for_timeout(1000 * _RUN_SECONDS)
    used = 100 * (processor_seconds(gateway) - before) / (time.monotonic() - began)
    late = [milliseconds for page in pages for milliseconds in page.evaluate("lateness")]
    if not late:
        raise SystemExit(f"no report came to the screen in {_RUN_SECONDS:g} s")
    return summarise(late).p95, used


@contextmanager
def _reading(address: str, token: str, number: int) -> Iterator[None]:
    """Reads so many streams of this address in another thread: Playwright has the event loop of this one."""
    opened: set[int] = set()
    loop = asyncio.new_event_loop()

    async def read(place: int) -> None:
        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
            http.stream("GET", address) as answer,
        ):
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                opened.add(place)

    async def read_all() -> None:
        await asyncio.gather(*(read(place) for place in range(number)))

    task = loop.create_task(read_all())

    def work() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: len(opened) == number or task.done(), "not all streams are open", _START_SECONDS, 0.05)
        if number and task.done():
            task.result()
        yield
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
