"""Windows of Chromium, and times that are taken inside of them.

A time ends with the frame after a condition holds, when the window answers again: the browser has drawn what the reader
waits for. Each window has a cache of its own, which is empty at first.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, Page, StorageState, ViewportSize, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    # A window that is not in front draws as one that is.
    "--disable-renderer-backgrounding", "--disable-background-timer-throttling",
]  # fmt: skip
SIZE: ViewportSize = {"width": 1440, "height": 900}
LIMIT_MS = 60_000
# Resolves with the milliseconds from the beginning until the condition holds and is drawn.
_AWAIT = """() => new Promise((resolve, reject) => {
  const began = BEGAN;
  const look = () => {
    if (CONDITION) requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
    else if (performance.now() - began > LIMIT) reject(new Error("it did not come to pass"));
    else setTimeout(look);
  };
  ACTION;
  look();
})"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. most: the target for the median; None without one."""

    name: str
    unit: str
    most: float | None = None


@contextmanager
def running_browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists() and shutil.which("chromium") is None:
        raise SystemExit("Chromium is not installed; install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def window(browser: Browser, state: StorageState | None = None) -> Iterator[Page]:
    """A window with an empty cache. state: the session of `sign_in`."""
    context = browser.new_context(viewport=SIZE, storage_state=state)
    context.set_default_timeout(LIMIT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def sign_in(browser: Browser, address: str, token: str) -> StorageState:
    """Signs the administrator in and returns the session's cookie for further windows."""
    with window(browser) as page:
        page.goto(f"{address}/sign-in")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Home").wait_for()
        return page.context.storage_state()


def time_visit(page: Page, address: str, condition: str) -> float:
    """Opens an address; returns the milliseconds from the order to open it until the condition, an expression in
    JavaScript, holds."""
    page.goto(address, wait_until="commit")
    return _await(page, "", condition, "0")


def time_action(page: Page, action: str, condition: str) -> float:
    """Returns the milliseconds from an action, a statement in JavaScript, until the condition holds."""
    return _await(page, action, condition, "performance.now()")


def _await(page: Page, action: str, condition: str, began: str) -> float:
    script = _AWAIT.replace("BEGAN", began).replace("LIMIT", str(LIMIT_MS))
    try:
        milliseconds: float = page.evaluate(script.replace("ACTION", action).replace("CONDITION", condition))
    except Error as failure:
        raise SystemExit(
            f"{page.url}: after {LIMIT_MS / 1000:g} s there is no {condition}: {failure.message}"
        ) from None
    return milliseconds


class ByteCount:
    """Counts the bytes and the answers that a window receives from now on, as they cross the network."""

    def __init__(self, page: Page) -> None:
        self.num_bytes = 0
        self.num_answers = 0
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.num_bytes += event["encodedDataLength"]
        self.num_answers += 1
