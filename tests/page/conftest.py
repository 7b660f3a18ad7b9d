"""One cluster for all tests of the page in a process, and one browser for each file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support import stand_in_jupyter
from tests.support.browser import running_browser, window
from tests.support.cluster import Cluster, running_cluster

PASSWORD = "a-good-password"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="write the pictures of the page in docs/images")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the pictures out where they are not asked for. The option is there only if tests/page is named."""
    is_asked = config.getoption("--pictures", default=False)
    return True if collection_path.name == "test_pictures.py" and not is_asked else None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose agent finds a program named jupyter."""
    programs = tmp_path_factory.mktemp("programs")
    script = programs / "jupyter"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in_jupyter.__file__}" "$@"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        with running_cluster(tmp_path_factory.mktemp("page"), agents=1, slots=2) as running:
            yield running


@pytest.fixture
def user_page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """A window in which ann is signed in, who is no administrator. Deactivated at the end: notebooks start only where
    no other user could open them."""
    with cluster.connect() as client:
        if any(user.name == "ann" for user in client.list_users()):
            client.activate_user("ann")
            client.change_password(PASSWORD, "ann")
        else:
            client.create_user("ann", PASSWORD)
        with window(browser) as page:
            page.goto(cluster.http_url)
            page.get_by_label("User").fill("ann")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="Home").wait_for()
            yield page
        client.deactivate_user("ann")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ends with the file: while Playwright runs, so does an event loop, beside which no other test can start one."""
    with running_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """A window in which the administrator is signed in."""
    with window(browser) as page:
        page.goto(cluster.run("open", "--print").stdout.strip())
        page.get_by_role("heading", name="Home").wait_for()
        yield page
