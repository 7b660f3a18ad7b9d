"""Signing in and out, in a browser: with a password, and with the address that the commands print."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import find_faults, window
from tests.support.cluster import Cluster


def test_a_password_opens_the_page_that_was_asked_for(browser: Browser, cluster: Cluster) -> None:
    with window(browser) as page:
        page.goto(f"{cluster.http_url}/experiments")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert find_faults(page) == []
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("the password is wrong")
        page.get_by_label("Password").fill(cluster.login.token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Experiments")).to_be_visible()
        [cookie] = page.context.cookies(f"{cluster.http_url}/api/v1/me")
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/api/")
        assert page.evaluate("document.cookie") == ""

        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        # The session has ended at the gateway, too, and not in this window alone.
        page.context.add_cookies([cookie])  # type: ignore[list-item]  # what it returned
        page.goto(cluster.http_url)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_signing_out_everywhere_ends_the_session_of_another_browser(
    page: Page, browser: Browser, cluster: Cluster
) -> None:
    with window(browser) as other:
        other.goto(cluster.run("open", "--print").stdout.strip())
        expect(other.get_by_role("heading", name="Home")).to_be_visible()
        other.get_by_text("admin (administrator)").click()
        other.get_by_role("button", name="Sign out everywhere").click()
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(cluster.http_url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    # The token of the command line goes on.
    assert cluster.read("user", "whoami")["name"] == "admin"


def test_an_address_signs_in_once(browser: Browser, cluster: Cluster) -> None:
    address = cluster.run("open", "--print").stdout.strip()
    with window(browser) as page:
        page.goto(address)
        expect(page.get_by_role("heading", name="Home")).to_be_visible()
        assert "#" not in page.url
    with window(browser) as page:
        page.goto(address)
        expect(page.get_by_role("alert")).to_contain_text("gangline open")
        assert page.context.cookies(f"{cluster.http_url}/api/v1/me") == []


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_page_has_no_serious_fault_of_access(page: Page, cluster: Cluster, path: str) -> None:
    page.goto(cluster.http_url + path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert find_faults(page) == []
