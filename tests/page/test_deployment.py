"""The page where operators put it: below a path of a proxy, over https, and in a network without a way out."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import running_browser, window
from tests.support.cluster import Cluster, running_cluster
from tests.support.island import can_make_islands
from tests.support.reverse_proxy import running_reverse_proxy

# From linux/sched.h.
_CLONE_NEWNET = 0x40000000
_CONFIG = "{name: seen, entrypoint: 'sleep 600', searcher: {name: single, metric: loss, max_length: 1}}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose gateway believes a proxy on this machine."""
    folder = tmp_path_factory.mktemp("proxied")
    (folder / "data").mkdir()
    (folder / "data" / "gateway.toml").write_text('trusted_proxies = ["127.0.0.1"]\n')
    with running_cluster(folder, agents=1, slots=1) as running:
        yield running


@pytest.mark.parametrize("is_tls", [False, True], ids=["http", "https"])
def test_the_page_works_below_a_path_of_a_proxy(
    browser: Browser, cluster: Cluster, tmp_path: Path, is_tls: bool
) -> None:
    path = "/lab/gang-line/"
    with running_reverse_proxy(cluster.http_url, path, tmp_path if is_tls else None) as (address, asked):
        with window(browser, ignore_https_errors=True) as page:
            page.goto(cluster.run("open", "--print", "--at", address).stdout.strip())
            expect(page.get_by_role("heading", name="Home")).to_be_visible()
            assert page.url == address
            [cookie] = page.context.cookies(f"{address}api/v1/me")
            assert (cookie["path"], cookie["secure"], cookie["httpOnly"]) == (f"{path}api/", is_tls, True)
            assert page.context.cookies(urlsplit(address)._replace(path="/api/v1/me").geturl()) == []
            _walk(page, cluster)
            # An address that was copied is asked for in a fresh window, below the path too.
            page.reload()
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            assert page.context.cookies(f"{address}api/v1/me") == []
        assert [each for each in asked if not each.startswith(path)] == []


def test_the_page_works_where_no_route_leads_elsewhere(tmp_path: Path) -> None:
    if not can_make_islands():
        pytest.skip("needs root and iproute2")
    failures: list[BaseException] = []

    def run_apart() -> None:
        # Moves this thread alone, with the processes that it starts, into a network of its own.
        try:
            assert ctypes.CDLL(None).unshare(_CLONE_NEWNET) == 0
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            with (
                running_cluster(tmp_path, agents=1, slots=1, is_forked=False) as cluster,
                running_browser() as browser,
                window(browser) as page,
            ):
                page.goto(cluster.run("open", "--print").stdout.strip())
                expect(page.get_by_role("heading", name="Home")).to_be_visible()
                _walk(page, cluster)
        except BaseException as failure:  # noqa: BLE001 - shown by the test's own thread
            failures.append(failure)

    thread = threading.Thread(target=run_apart)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _walk(page: Page, cluster: Cluster) -> None:
    """Follows each link of the navigation, and sees an experiment that begins meanwhile."""
    links = page.get_by_role("navigation").get_by_role("link")
    expect(links.nth(2)).to_be_visible()
    for name in links.all_inner_texts():
        page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        # The heading of the view before is shown until this one's code is there.
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        expect(page.get_by_text("Loading…")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("navigation").get_by_role("link", name="Experiments", exact=True).click()
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
    (cluster.home / "code").mkdir(exist_ok=True)
    (cluster.home / "config.yaml").write_text(_CONFIG)
    files = cluster.home / "config.yaml", cluster.home / "code"
    number = cluster.read("experiment", "create", "--again", *files)["experiment"]["id"]
    row = page.get_by_role("row").filter(has_text="seen").first
    expect(row).to_be_visible(timeout=15_000)
    cluster.run("experiment", "kill", str(number))
