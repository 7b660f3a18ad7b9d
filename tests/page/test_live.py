"""The stream of changes behind an open page: one for each window, and it goes on when the other side dies, is away,
refuses, or comes back."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Trial
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import State
from gangline.domain.user import User
from gangline.protocol import wire
from services.common import keys
from services.common.access.security import as_password, hash_token
from services.common.etcd import Put
from tests.page import studies
from tests.support.browser import window
from tests.support.cluster import Cluster
from tests.support.gateway import NO_TLS, GatewayProcess
from tests.support.many_experiments import make_trial, renamed
from tests.support.many_page import USERS, ManyExperiments, in_thread, many_experiments, token_of
from tests.support.postgres import Postgres, find_postgres
from tests.support.proxy import one_address
from tests.support.wait import until_sync

NUM = 20
LOST = "The connection to the gateway is lost"
STALE = "What you see is not kept up to date"
# Streams of one user at one gateway.
MAX_STREAMS = 100


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyExperiments]:
    with many_experiments(tmp_path_factory.mktemp("live"), NUM) as running:
        yield running


@pytest.fixture
def alice(browser: Browser, many: ManyExperiments) -> Iterator[Page]:
    with window(browser) as page:
        many.open(page, "/experiments")
        yield page


class Streams:
    """The streams that a window holds, and what it asked for."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._open: set[Request] = set()
        self.asked: list[str] = []
        page.on("request", self._begin)
        page.on("requestfinished", self._end)
        page.on("requestfailed", self._end)

    def _begin(self, request: Request) -> None:
        self.asked.append(request.url)
        if "/api/v1/stream" in request.url:
            self._open.add(request)

    def _end(self, request: Request) -> None:
        self._open.discard(request)

    def addresses(self) -> list[str]:
        self._page.title()  # lets Playwright pass what has happened meanwhile
        return [request.url for request in self._open]

    def expect_one(self, *parts: str) -> None:
        """Waits until there is one, with these parameters."""

        def is_one() -> bool:
            addresses = self.addresses()
            return len(addresses) == 1 and all(part in addresses[0] for part in parts)

        until_sync(is_one, f"one stream with {parts}")


def _alert(page: Page, text: str) -> Locator:
    return page.get_by_role("alert").filter(has_text=text)


def test_a_window_holds_one_stream_whatever_it_has_shown(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    number = studies.start_live(cluster, tmp_path)
    streams = Streams(page)
    page.goto(cluster.http_url)
    streams.expect_one("experiments=true", "queue=true")
    for link, part in (("Queue", "queue=true"), ("Cluster", "agents=true"), ("Experiments", "experiments=true")):
        page.get_by_role("navigation").get_by_role("link", name=link, exact=True).click()
        expect(page.get_by_role("heading", name=link, level=1)).to_be_visible()
        streams.expect_one(part)
    page.get_by_role("link", name="Cluster", exact=True).click()
    page.get_by_role("tab", name="Pools").click()
    streams.expect_one("agents=true", "queue=true")
    page.get_by_role("link", name="Workspaces", exact=True).click()
    page.get_by_role("link", name="Uncategorized").click()
    page.get_by_role("link", name="Uncategorized").click()
    expect(page.get_by_role("grid", name="Experiments")).to_be_visible()
    streams.expect_one("projectId")
    page.get_by_role("link", name="live", exact=True).first.click()
    page.get_by_role("tab", name="Learning curves").click()
    streams.expect_one("experiments=true", f"metrics={number}.1")
    page.get_by_role("tab", name="Trials").click()
    streams.expect_one("experiments=true", "trials=true")
    page.get_by_role("link", name=f"{number}.1", exact=True).click()
    expect(page.get_by_role("heading", name=f"Trial {number}.1")).to_be_visible()
    streams.expect_one("trials=true", f"metrics={number}.1")

    # And that one brings both: reports, and the end.
    figure = page.locator("figure").filter(has_text="Table of loss")
    figure.get_by_text("Table of loss").click()
    newest = figure.get_by_role("rowheader").last
    first = int(newest.inner_text())
    until_sync(lambda: int(newest.inner_text()) > first, "a later point of the chart")
    cluster.run("experiment", "kill", str(number))
    expect(page.get_by_text("CANCELED").first).to_be_visible()


def test_a_window_that_is_opened_in_the_background_is_filled(alice: Page, many: ManyExperiments) -> None:
    alice.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true })")
    alice.goto(f"{many.url}/compare?trial=19.1")
    expect(alice.get_by_role("heading", name="Compare 1 trials")).to_be_visible()


@pytest.mark.parametrize("path", ["/experiments/19", "/trials/19.1", "/cluster", "/queue"])
def test_an_open_view_shows_what_happened_while_its_gateway_was_away(
    alice: Page, many: ManyExperiments, path: str
) -> None:
    changes = {
        "/experiments/19": renamed(19, "renamed meanwhile"),
        "/trials/19.1": Put(keys.trial("19.1"), wire.encode(replace(make_trial(19), warning="hot meanwhile"))),
        "/cluster": Put(keys.agent("meanwhile"), wire.encode(Agent("meanwhile", slots=(Slot("meanwhile/0"),)))),
        "/queue": Put(keys.allocation("19.1.1"), wire.encode(_running("19.1.1"))),
    }
    alice.goto(f"{many.url}{path}")
    expect(alice.get_by_role("heading", level=1)).to_be_visible()
    shown = alice.get_by_text("19.1" if path == "/queue" else "meanwhile").first
    expect(alice.get_by_text("Loading…")).to_have_count(0)
    expect(shown).to_have_count(0)
    alice.evaluate("window.isSame = true")
    many.kill_gateway()
    expect(_alert(alice, LOST)).to_be_visible()
    many.put(changes[path])
    # The history between the page's cursor and now is gone as well.
    many.compact()
    many.start_gateway()
    expect(shown).to_be_visible()
    expect(_alert(alice, LOST)).to_have_count(0)
    assert alice.evaluate("window.isSame")


def _running(allocation_id: str) -> Allocation:
    trial_id = allocation_id.rpartition(".")[0]
    return Allocation(allocation_id, trial_id, int(trial_id.split(".")[0]), 1, 1, "default", (), state=State.RUNNING)


@contextmanager
def _second_gateway(many: ManyExperiments, folder: Path) -> Iterator[GatewayProcess]:
    storage = many.gateway.flags["storage-url"]
    second = GatewayProcess(folder, many.etcd.address, **{"storage-url": storage})
    in_thread(second.start())
    try:
        yield second
    finally:
        in_thread(second.end())


def test_a_page_goes_on_at_the_other_gateway_of_its_address(
    browser: Browser, many: ManyExperiments, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        second = stack.enter_context(_second_gateway(many, tmp_path))
        address = stack.enter_context(one_address(many.gateway.flags["http-listen"], second.flags["http-listen"]))
        page = stack.enter_context(window(browser))
        many.open(page, "/experiments", url=f"http://{address}")
        expect(page.get_by_text("digits-7", exact=True)).to_be_visible()
        streams = Streams(page)
        many.kill_gateway()
        stack.callback(many.start_gateway)
        many.put(renamed(7, "renamed at once"))
        expect(page.get_by_text("renamed at once", exact=True)).to_be_visible(timeout=5_000)
        many.put(renamed(8, "renamed afterwards"))
        expect(page.get_by_text("renamed afterwards", exact=True)).to_be_visible(timeout=5_000)
        # The cursor holds at the other one: nothing was read anew, and the session goes on.
        assert [url for url in streams.asked if "/api/v1/stream" not in url] == []
        expect(_alert(page, LOST)).to_have_count(0)


def test_a_view_says_that_its_database_is_away_and_comes_back(browser: Browser) -> None:
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="pg"))
        stack.callback(shutil.rmtree, folder)
        postgres = Postgres(binaries, folder)
        postgres.start()
        stack.callback(postgres.stop)
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        many = stack.enter_context(many_experiments(own, NUM, **{"database-url": postgres.url}))
        trial = Trial("7.1", 7, 1, state=State.RUNNING)
        many.put(Put(keys.trial("7.1"), wire.encode(trial)))
        page = stack.enter_context(window(browser))
        many.open(page, "/trials/7.1")
        expect(page.get_by_text("The trial has reported no metric yet")).to_be_visible()
        postgres.stop()
        many.put(Put(keys.trial("7.1"), wire.encode(replace(trial, warning="no disk"))))
        expect(_alert(page, STALE)).to_contain_text("the history cannot be read now")
        # What needs no database comes as before.
        page.get_by_role("link", name="Experiments", exact=True).click()
        many.put(renamed(9, "renamed without"))
        expect(page.get_by_text("renamed without", exact=True)).to_be_visible()
        expect(_alert(page, STALE)).to_have_count(0)
        page.goto(f"{many.url}/trials/7.1")
        expect(_alert(page, "the history cannot be read now")).to_be_visible()
        postgres.launch()
        expect(page.get_by_text("Warning: no disk")).to_be_visible()
        expect(page.get_by_text("The trial has reported no metric yet")).to_be_visible()
        expect(_alert(page, "the history cannot be read now")).to_have_count(0)


def test_a_refused_stream_says_why_and_begins_when_there_is_room(browser: Browser, many: ManyExperiments) -> None:
    headers = {"Authorization": f"Bearer {token_of(USERS[1])}"}
    with ExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        client = stack.enter_context(httpx.Client(base_url=many.url, headers=headers, verify=NO_TLS, limits=limits))
        others = stack.enter_context(ExitStack())
        for _ in range(MAX_STREAMS):
            answer = others.enter_context(client.stream("GET", "/api/v1/stream"))
            assert answer.status_code == 200
        page = stack.enter_context(window(browser))
        many.open(page, "/cluster", USERS[1])
        expect(_alert(page, STALE)).to_contain_text(f"bob has {MAX_STREAMS} streams at this gateway")
        expect(_alert(page, LOST)).to_have_count(0)
        others.close()
        expect(_alert(page, STALE)).to_have_count(0)
        many.put(Put(keys.agent("afterwards"), wire.encode(Agent("afterwards", slots=(Slot("afterwards/0"),)))))
        expect(page.get_by_text("afterwards").first).to_be_visible()


@pytest.mark.parametrize("change", [{"is_deactivated": True}, {"sessions_since": 4e9}], ids=["deactivated", "ended"])
def test_an_open_page_shows_the_sign_in_when_its_session_ends(
    browser: Browser, many: ManyExperiments, change: dict[str, Any]
) -> None:
    token = token_of("eve")
    user = User("eve", hash_token(token), False, login_sha256=hash_token(as_password(token)), id=9)
    many.put(Put(keys.user("eve"), wire.encode(user)))
    with window(browser) as page:
        page.goto(f"{many.url}/cluster")
        page.get_by_label("User").fill("eve")
        page.get_by_label("Password").fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
        streams = Streams(page)
        many.put(Put(keys.user("eve"), wire.encode(replace(user, **change))))
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        until_sync(lambda: streams.addresses() == [], "no stream any more")
        expect(_alert(page, STALE)).to_have_count(0)
