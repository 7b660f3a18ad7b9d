"""One cluster for all tests of the page in a process, and one browser for each file."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from gangline.client import Client
from tests.support import stand_in_jupyter
from tests.support.browser import describe_windows, running_browser, window
from tests.support.cluster import Cluster, running_cluster
from tests.support.wait import until_sync

PASSWORD = "a-good-password"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="write the pictures of the page in docs/images")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the pictures out where they are not asked for. The option is there only if tests/page is named."""
    is_asked = config.getoption("--pictures", default=False)
    return True if collection_path.name == "test_pictures.py" and not is_asked else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the windows show to the report of a failure, while they are open."""
    report = yield
    if report.failed and (shown := describe_windows()):
        report.sections.append(("windows", shown))
    return report


@pytest.fixture(scope="session")
def shared_clusters() -> list[Cluster]:
    """The cluster of all files, once a test has asked for it."""
    return []


@pytest.fixture(scope="module", autouse=True)
def _left_clean(shared_clusters: list[Cluster]) -> Iterator[None]:
    """Ends the work of a file and deletes its models. Which files share a cluster, and in which order, is chance."""
    yield
    for cluster in shared_clusters:
        with cluster.connect() as client:
            _clean(client)


def _clean(client: Client) -> None:
    for experiment_id in {task.trial.experiment_id for task in client.list_tasks()}:
        client.kill_experiment(experiment_id)
    models = client.list_models(limit=0)
    for view in models:
        client.unarchive_model(view.model.name)
    for found in client.list_model_versions(limit=0):
        for alias in found.aliases:
            client.remove_model_alias(found.model_name, alias)
        client.delete_model_version(found.model_name, found.version.number)
    for view in models:
        client.delete_model(view.model.name)
    until_sync(lambda: client.list_tasks() == [], "no work in the cluster")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_clusters: list[Cluster]) -> Iterator[Cluster]:
    """A cluster whose agent finds a program named jupyter."""
    programs = tmp_path_factory.mktemp("programs")
    script = programs / "jupyter"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in_jupyter.__file__}" "$@"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        with running_cluster(tmp_path_factory.mktemp("page"), agents=1, slots=2) as running:
            shared_clusters.append(running)
            yield running
            shared_clusters.remove(running)


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
