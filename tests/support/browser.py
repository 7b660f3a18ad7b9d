"""A browser for tests of the page: Debian's Chromium, driven by Playwright. axe-core judges what it shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Error,
    Page,
    Request,
    Response,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.support.source import ROOT

CHROMIUM = "/usr/bin/chromium"
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    # A name for this machine that browsers do not take for it: they trust such a connection only over https.
    "--host-resolver-rules=MAP gateway.example 127.0.0.1",
]  # fmt: skip
_AXE = ROOT / "page/node_modules/axe-core/axe.min.js"
NARROW: ViewportSize = {"width": 360, "height": 740}
WIDE: ViewportSize = {"width": 1440, "height": 900}
_IS_OWN = re.compile(r"https?://127\.0\.0\.1:\d+/|data:|blob:|about:")
# Rules of axe-core that are not of its two worst levels are shown by none of the tests.
# Characters of what a window showed when a test failed.
_MAX_SHOWN = 2000
_SERIOUS = ("serious", "critical")


@contextmanager
def running_browser() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("Chromium is not installed (Debian's package chromium)")
    # A machine under load takes long to draw.
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@contextmanager
def window(browser: Browser, **settings: Any) -> Iterator[Page]:
    """A window with cookies of its own. Fails at its end where a script threw, where the page's policy refused
    something, and where anything was asked of another machine."""
    context: BrowserContext = browser.new_context(locale="en-GB", **{"timezone_id": "Europe/Zurich", **settings})
    context.set_default_timeout(30_000)
    problems: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    page.on("request", lambda asked: problems.append(asked.url) if not _IS_OWN.match(asked.url) else None)
    _watched[page] = _Watched(_Requests(page), problems)
    try:
        yield page
    finally:
        del _watched[page]
        context.close()
    assert problems == []


def describe_windows() -> str:
    """Says what each open window shows. Without it, a failure that comes once cannot be explained."""
    return "\n\n".join(_describe(page, watched) for page, watched in _watched.items())


@dataclass
class _Watched:
    requests: _Requests
    problems: list[str]


_watched: dict[Page, _Watched] = {}


class _Requests:
    """The requests of a window that have no answer yet, and those that failed."""

    def __init__(self, page: Page) -> None:
        self.open: list[str] = []
        self.failed: list[str] = []
        page.on("request", lambda asked: self.open.append(asked.url))
        page.on("response", self._note_answer)
        page.on("requestfailed", self._note_failure)

    def _note_answer(self, answer: Response) -> None:
        with suppress(ValueError):
            self.open.remove(answer.url)
        if not answer.ok:
            self.failed.append(f"{answer.status} {answer.url}")

    def _note_failure(self, asked: Request) -> None:
        with suppress(ValueError):
            self.open.remove(asked.url)
        self.failed.append(f"{asked.failure} {asked.url}")


def _describe(page: Page, watched: _Watched) -> str:
    try:
        shown = page.locator("body").inner_text(timeout=2000)[:_MAX_SHOWN]
    except Error as error:
        shown = f"cannot be read: {error}"
    parts = {
        "address": page.url,
        "problems": watched.problems,
        "requests without an answer": watched.requests.open,
        "failed requests": watched.requests.failed[-20:],
        "text": shown,
    }
    return "\n".join(f"{name}: {value}" for name, value in parts.items())


def find_faults(page: Page) -> list[str]:
    """What axe-core finds serious or critical in what the window shows, narrow and wide, light and dark."""
    # The page's policy lets no script of others run in it; the browser's own protocol does.
    page.evaluate(f"() => {{ {_AXE.read_text()} ; return null }}")
    faults = []
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        for size in (NARROW, WIDE):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            found = page.evaluate("async () => (await axe.run()).violations")
            faults += [
                f"{scheme} {size['width']}: {each['id']}: {node['html']} {node['failureSummary']}"
                for each in found
                if each["impact"] in _SERIOUS
                for node in each["nodes"]
            ]
            # A chart takes its new width with the next frame, which a busy machine draws late.
            with suppress(Error):
                page.wait_for_function("document.documentElement.scrollWidth <= innerWidth", timeout=5000)
            overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            faults += [f"{scheme} {size['width']}: wider than the window by {overflow}"] if overflow > 0 else []
    return faults
