"""One cluster and one browser for all tests of the page in a process, and trials that are in progress on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.support.browser import running_browser, window
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("page"), agents=1, slots=2) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """A window in which the administrator is signed in."""
    with window(browser) as page:
        page.goto(cluster.run("open", "--print").stdout.strip())
        page.get_by_role("heading", name="Home").wait_for()
        yield page
