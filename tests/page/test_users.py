"""Users and the own account in a browser: made, deactivated, passwords, tokens; and what others may not do."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from gangline.client import Client
from gangline.domain.state import State
from tests.page.conftest import PASSWORD
from tests.support.browser import find_faults, window
from tests.support.cluster import Cluster

SHOWN = "<script>alert(1)</script> \u05e9\u05dc\u05d5\u05dd"


def user_of(cluster: Cluster, name: str) -> dict[str, object]:
    users: list[dict[str, object]] = cluster.read("user", "list")
    [found] = [user for user in users if user["name"] == name]
    return found


def make_experiment(cluster: Cluster, owner: str, code: Path) -> int:
    """Makes a paused experiment of a user, and returns its id."""
    with cluster.connect() as admin:
        _, secret = admin.create_token("for one experiment", owner)
    with Client(cluster.login.address, secret) as client:
        config = "entrypoint: 'true'\nsearcher: {name: single, metric: loss}\n"
        return client.create_experiment(config, code, is_paused=True).experiment.id


def sign_in(page: Page, cluster: Cluster, name: str, password: str) -> None:
    page.goto(cluster.http_url)
    page.get_by_label("User").fill(name)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def test_a_user_is_made_gets_a_password_and_is_deactivated(
    page: Page, browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    page.goto(f"{cluster.http_url}/users")
    page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("bob")
    dialog.get_by_label("Shown as").fill(SHOWN)
    dialog.get_by_label("Password").fill("short")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_contain_text("8 characters")
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("button", name="Make").click()
    expect(page.get_by_role("row").filter(has_text="bob")).to_contain_text("active")
    assert (user_of(cluster, "bob")["display_name"], user_of(cluster, "bob")["is_admin"]) == (SHOWN, False)
    assert find_faults(page) == []

    page.get_by_role("button", name="Set password: bob").click()
    dialog.get_by_label("New password").fill("another-password")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog).to_have_count(0)
    with window(browser) as own:
        sign_in(own, cluster, "bob", PASSWORD)
        expect(own.get_by_role("alert")).to_contain_text("password is wrong")
        sign_in(own, cluster, "bob", "another-password")
        expect(own.get_by_role("heading", name="Home")).to_be_visible()
        experiment_id = make_experiment(cluster, "bob", tmp_path)

        page.get_by_role("button", name="Deactivate: bob").click()
        expect(dialog).to_contain_text("gangline user deactivate bob")
        dialog.get_by_label("Also kill the user's experiments").check()
        expect(dialog).to_contain_text("gangline user deactivate bob --kill-experiments")
        assert find_faults(page) == []
        dialog.get_by_role("button", name="Deactivate").click()
        expect(page.get_by_role("row").filter(has_text="bob")).to_contain_text("deactivated")
        assert user_of(cluster, "bob")["is_active"] is False
        with cluster.connect() as client:
            assert client.get_experiment(experiment_id).experiment.state is State.TERMINAL
        own.reload()
        expect(own.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_user_changes_the_own_account_alone(user_page: Page, browser: Browser, cluster: Cluster) -> None:
    user_page.goto(f"{cluster.http_url}/users")
    expect(user_page.get_by_role("row").filter(has_text="admin")).to_be_visible()
    expect(user_page.get_by_text("Only administrators make and change users.")).to_be_visible()
    expect(user_page.get_by_role("button", name=re.compile("New user|Deactivate|Set password"))).to_have_count(0)
    user_page.goto(f"{cluster.http_url}/settings")
    user_page.get_by_role("button", name="Change the password").click()
    dialog = user_page.get_by_role("dialog")
    dialog.get_by_label("New password").fill("a-third-password")
    assert find_faults(user_page) == []
    with window(browser) as other:
        sign_in(other, cluster, "ann", PASSWORD)
        expect(other.get_by_role("heading", name="Home")).to_be_visible()
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(user_page.get_by_role("status").filter(has_text="the password is changed")).to_be_visible()
        # This window stays signed in, and the other one does not.
        user_page.reload()
        expect(user_page.get_by_role("heading", name="Account")).to_be_visible()
        other.reload()
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
        sign_in(other, cluster, "ann", "a-third-password")
        expect(other.get_by_role("heading", name="Home")).to_be_visible()


def test_a_token_is_shown_once_works_and_is_revoked(user_page: Page, cluster: Cluster) -> None:
    user_page.goto(f"{cluster.http_url}/settings")
    user_page.get_by_role("button", name="New token").click()
    dialog = user_page.get_by_role("dialog")
    dialog.get_by_label("What it is for").fill("nightly <b>")
    dialog.get_by_label("How long it holds").select_option("7")
    dialog.get_by_role("button", name="Make").click()
    # The dialog before this one has code as well, a command.
    secret = user_page.get_by_role("dialog", name="The new token").locator("code").inner_text()
    assert find_faults(user_page) == []
    dialog.get_by_role("button", name="I have stored it").click()
    expect(user_page.get_by_text(secret)).to_have_count(0)
    with Client(cluster.login.address, secret) as client:
        assert client.who_am_i().name == "ann"
        [token] = client.list_tokens()
        assert (token.name, round((token.expires_at - token.created_at) / 86400)) == ("nightly <b>", 7)
    user_page.get_by_role("button", name=f"Revoke token {token.id}").click()
    expect(dialog).to_contain_text(f"gangline token revoke {token.id}")
    dialog.get_by_role("button", name="Revoke").click()
    expect(user_page.get_by_role("row").filter(has_text="nightly <b>")).to_have_count(0)
    with cluster.connect() as client:
        assert client.list_tokens("ann") == []

    user_page.get_by_role("button", name="Sign out of this browser").click()
    expect(user_page.get_by_role("heading", name="Sign in")).to_be_visible()
