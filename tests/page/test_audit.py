"""The audit log in a browser: an administrator finds what was done and what was refused; others read nothing of it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from gangline.client import Client
from gangline.errors import GanglineError
from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

SHOWN = "<img src=x onerror=window.isHacked=1><b>Carol</b> \u05e9\u05dc\u05d5\u05dd " + "x" * 90
# More than the view shows at a time.
NUM_KILLS = 101


@pytest.fixture(scope="module")
def refused(cluster: Cluster) -> Iterator[str]:
    """The name of a user who has tried to make a user, and to kill an experiment that is not there many times."""
    with closing(cluster.connect()) as admin:
        admin.create_user("carol", display_name=SHOWN)
        _, secret = admin.create_token("of carol", "carol")
        with Client(cluster.login.address, secret, retry_seconds=0) as carol:
            with pytest.raises(GanglineError):
                carol.create_user("eve")
            for _ in range(NUM_KILLS):
                with pytest.raises(GanglineError):
                    carol.kill_experiment(999_999)
        until_sync(lambda: len(admin.list_audit(user="carol", limit=1000)[0]) > NUM_KILLS, "the records of carol")
        yield "carol"
        admin.deactivate_user("carol")


def rows(page: Page) -> Locator:
    return page.locator("tbody tr")


def test_an_administrator_finds_what_was_refused(page: Page, cluster: Cluster, refused: str, tmp_path: Path) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    expect(page.get_by_role("heading", name="Audit log")).to_be_visible()
    expect(rows(page)).to_have_count(100)
    page.get_by_label("User", exact=True).fill(refused)
    page.keyboard.press("Enter")
    page.get_by_label("Outcome").select_option("failed")
    page.get_by_label("Action", exact=True).fill("user")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("auth.not_admin")
    expect(rows(page)).to_contain_text("127.0.0.1")
    command = "gangline audit --user carol --action user --outcome failed"
    expect(page.get_by_text(command, exact=True)).to_be_visible()
    assert "user.create" in cluster.run(*command.split()[1:]).stdout
    assert find_faults(page) == []

    with page.expect_download() as started:
        page.get_by_role("button", name="Save as CSV").click()
    started.value.save_as(tmp_path / "audit.csv")
    [line] = csv.DictReader((tmp_path / "audit.csv").read_text().splitlines())
    assert (line["actor"], line["action"], line["outcome"]) == (refused, "user.create", "auth.not_admin")

    # The address holds the filter.
    page.reload()
    expect(rows(page)).to_have_count(1)
    page.get_by_label("From", exact=True).fill("2100-01-01T00:00")
    expect(page.get_by_text("No record matches.")).to_be_visible()
    page.get_by_label("From", exact=True).fill("2020-01-01T00:00")
    expect(rows(page)).to_have_count(1)
    page.get_by_label("Until", exact=True).fill("2019-01-01T00:00")
    expect(page.get_by_role("alert")).to_contain_text("the period ends before it begins")
    page.get_by_role("link", name="All records").click()
    expect(rows(page)).to_have_count(100)
    expect(page.get_by_label("From", exact=True)).to_have_value("")


def test_older_records_are_reached_by_keyboard(page: Page, cluster: Cluster, refused: str) -> None:
    page.goto(f"{cluster.http_url}/audit?user={refused}&action=experiment.kill")
    expect(rows(page)).to_have_count(100)
    page.get_by_role("link", name="Older records").focus()
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(NUM_KILLS - 100)
    expect(rows(page).first).to_contain_text("experiment/999999")
    expect(page.get_by_role("link", name="Older records")).to_have_count(0)
    page.go_back()
    expect(rows(page)).to_have_count(100)
    page.go_forward()
    expect(rows(page)).to_have_count(NUM_KILLS - 100)
    page.get_by_role("link", name="Newest records").focus()
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(100)
    # A value of a record is a link to all records that have it.
    page.goto(f"{cluster.http_url}/audit?outcome=auth.not_admin")
    link = page.get_by_role("link", name=f"Only user {refused}")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("User", exact=True)).to_have_value(refused)
    expect(page.get_by_label("Outcome")).to_have_value("auth.not_admin")


def test_what_users_write_is_shown_as_text(page: Page, cluster: Cluster, refused: str) -> None:
    page.goto(f"{cluster.http_url}/audit?action=user.create&object=user/{refused}")
    expect(rows(page)).to_have_count(1)
    summary = rows(page).locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(rows(page).get_by_text(f"display_name: {SHOWN}")).to_be_visible()
    assert find_faults(page) == []
    assert page.locator("main img, main b").count() == 0
    assert page.evaluate("window.isHacked ?? null") is None


def test_others_have_no_link_and_read_no_record(user_page: Page, cluster: Cluster) -> None:
    navigation = user_page.get_by_role("navigation", name="Pages")
    expect(navigation.get_by_role("link", name="Users")).to_be_visible()
    expect(navigation.get_by_role("link", name="Audit")).to_have_count(0)
    asked: list[str] = []
    user_page.on("request", lambda request: asked.append(request.url))
    user_page.goto(f"{cluster.http_url}/audit")
    expect(user_page.get_by_text("Only administrators read the audit log.")).to_be_visible()
    expect(rows(user_page)).to_have_count(0)
    assert find_faults(user_page) == []
    assert [url for url in asked if "/api/v1/audit" in url] == []
