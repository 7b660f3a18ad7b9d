"""Every view as a user sees it who owns nothing of what is shown: nothing that the view offers is refused to him.

`ADDRESSES` has an entry for each view of page/src/views.ts, so a new view comes with addresses to walk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, Request, Response, expect

from tests.page import studies
from tests.support.cluster import Cluster
from tests.support.source import ROOT

# The addresses of each view, by its pattern. {search}: an experiment of the administrator with a checkpoint.
ADDRESSES = {
    "/": ["/?of=all"],
    "/experiments": ["/experiments?filter=id+%3D+{search}"],
    "/experiments/:id": ["/experiments/{search}"],
    "/workspaces": ["/workspaces?archived=yes"],
    "/workspaces/:id": ["/workspaces/{workspace}?archived=yes"],
    "/projects/:id": ["/projects/1?filter=id+%3D+{search}"],
    "/trials/:id": ["/trials/{search}.1", "/trials/{shell}.1"],
    "/compare": ["/compare?experiment={search}"],
    "/queue": ["/queue"],
    "/tasks": ["/tasks"],
    "/checkpoints": ["/checkpoints?text={search}.3"],
    "/models": ["/models?archived=yes"],
    "/models/:id": ["/models/{model}"],
    "/templates": ["/templates"],
    "/cluster": ["/cluster"],
    "/users": ["/users"],
    "/audit": ["/audit"],
    "/settings": ["/settings"],
    "/docs": ["/docs"],
}
# Controls that every user has for himself, and that end the walk or leave the view.
LEFT_OUT = re.compile("Sign out|^Kill$|Start a task|Compare \\d")
# Rows of one kind offer the same, so a few of each are tried.
MOST_OF_A_NAME = 2


@pytest.fixture(scope="module")
def names(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the administrator owns, as the addresses name it."""
    folder = tmp_path_factory.mktemp("rights")
    search = studies.run_search(cluster, folder)
    (folder / "template.yaml").write_text("resources: {priority: 50}\n")
    cluster.run("template", "set", "of-the-administrator", str(folder / "template.yaml"))
    with cluster.connect() as client:
        workspace = client.create_workspace("of the administrator")
        client.create_project(workspace.name, "inside")
        model = client.create_model("of-the-administrator")
        [checkpoint, *_] = client.list_checkpoints(search)
        client.register_model_version(model.name, checkpoint.id)
    shell = cluster.run("shell", "start", "--detach").stdout.strip()
    yield {"search": str(search), "workspace": str(workspace.id), "model": str(model.id), "shell": shell}
    cluster.run("shell", "kill", shell)


def test_every_view_is_walked() -> None:
    views = (ROOT / "page/src/views.ts").read_text()
    patterns = re.findall(r'pattern: "([^"]+)"', views)
    assert sorted(patterns) == sorted(ADDRESSES)


class Traffic:
    """Watches the requests of a window: which were refused for lack of rights, and which have no answer yet."""

    def __init__(self, page: Page) -> None:
        self.clicked = ""
        self.refused: list[str] = []
        self._page = page
        self._pending: set[Request] = set()
        page.on("request", lambda request: self._pending.add(request))  # noqa: PLW0108 - takes no built-in method
        page.on("requestfailed", self._on_end)
        page.on("requestfinished", self._on_end)
        page.on("response", self._on_response)

    def _on_end(self, request: Request) -> None:
        self._pending.discard(request)

    def _on_response(self, answer: Response) -> None:
        if answer.status == 403:
            self.refused.append(f"{answer.request.method} {answer.url} after {self.clicked}")
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            self._pending.discard(answer.request)

    def settle(self) -> None:
        """Waits until the page has drawn what a click changes, and all requests but streams are answered. Raises
        AssertionError after 20 s."""
        self._page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        deadline = time.monotonic() + 20
        while self._pending:
            assert time.monotonic() < deadline, [request.url for request in self._pending]
            # Playwright takes events only while it waits.
            self._page.wait_for_timeout(10)


@pytest.mark.parametrize("pattern", ADDRESSES)
def test_a_view_offers_nothing_that_is_refused(
    user_page: Page, cluster: Cluster, names: dict[str, str], pattern: str
) -> None:
    traffic = Traffic(user_page)
    for template in ADDRESSES[pattern]:
        address = cluster.http_url + template.format_map(names)
        open_view(user_page, address, traffic)
        for tab in user_page.get_by_role("tab").all_inner_texts() or [""]:
            open_view(user_page, address, traffic)
            open_tab(user_page, tab, traffic)
            offered, before = controls(user_page), look(user_page)
            for text, index in offered:
                # Most controls leave the view as it was, and loading it again takes most of the time.
                if look(user_page) != before:
                    open_view(user_page, address, traffic)
                    open_tab(user_page, tab, traffic)
                control = buttons(user_page, text).nth(index)
                if not control.is_visible() or not control.is_enabled():
                    continue
                traffic.clicked = f"{tab} {text}"
                control.click()
                confirm(user_page, traffic)
    assert traffic.refused == []


def open_view(page: Page, address: str, traffic: Traffic) -> None:
    page.goto(address)
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
    traffic.settle()


def open_tab(page: Page, title: str, traffic: Traffic) -> None:
    if title:
        page.get_by_role("tab", name=title, exact=True).click()
        traffic.settle()
    for box in page.get_by_label(re.compile("^Select all")).all():
        box.check()


def buttons(page: Page, text: str) -> Locator:
    return page.get_by_role("main").locator("button").filter(has_text=re.compile(rf"^{re.escape(text)}$"))


def look(page: Page) -> tuple[object, ...]:
    """What a click may have changed, so that the next control is not what it was."""
    return page.url, page.locator("dialog[open]").count(), controls(page)


def controls(page: Page) -> list[tuple[str, int]]:
    """The buttons of the view by their texts, with the place among those of the same text."""
    found = page.get_by_role("main").locator("button:visible:enabled:not([role=tab])").all_inner_texts()
    texts = [text.strip() for text in found if text.strip() and not LEFT_OUT.search(text)]
    return [(text, index) for text in dict.fromkeys(texts) for index in range(min(MOST_OF_A_NAME, texts.count(text)))]


def confirm(page: Page, traffic: Traffic) -> None:
    """Does what an open dialog asks for, if it can be done without filling in more."""
    traffic.settle()
    dialog = page.get_by_role("dialog")
    if not dialog.count() or dialog.locator("form:invalid").count():
        return
    action = dialog.locator("button.danger:enabled, button.main:enabled")
    if action.count():
        action.first.click()
        traffic.settle()
