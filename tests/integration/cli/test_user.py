"""`gangline login --user`, `user` and `token`: where passwords come from, and what is stored and shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gangline.domain.user import hash_password
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.user_calls import PASSWORD

SESSION = "login:session-of-the-tests"


@pytest.fixture
def path(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The login file; nothing else names a gateway or a token."""
    monkeypatch.delenv("GANGLINE_GATEWAY")
    monkeypatch.delenv("GANGLINE_TOKEN")
    return tmp_path / "home" / "login.json"


def give(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def log_in(cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.session = SESSION
    give(f"{PASSWORD}\n", monkeypatch)
    done = cli("login", gateway.address, "--user", "ann")
    assert (done.status, done.err) == (0, "")
    assert f"logged in to {gateway.address} as ann" in done.out


def test_a_password_opens_a_session_that_later_commands_use(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(cli, gateway, monkeypatch)
    text = path.read_text()
    assert json.loads(text)["token"] == SESSION
    assert PASSWORD not in text
    assert hash_password(PASSWORD) not in text
    assert cli("user", "whoami").out == "ann\n"


def test_what_opens_no_session_is_not_stored_and_not_shown(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, message in (("Wrong-password-1\n", "the password is wrong"), ("", "no password")):
        give(given, monkeypatch)
        done = cli("login", gateway.address, "--user", "ann")
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert message in done.err
        assert "Wrong-password-1" not in done.err
        assert not path.exists()


def test_a_variable_that_wins_over_the_session_is_named(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.session = SESSION
    monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
    give(f"{PASSWORD}\n", monkeypatch)
    assert "GANGLINE_TOKEN is set" in cli("login", gateway.address, "--user", "ann").err
    assert json.loads(path.read_text())["token"] == SESSION


def test_a_new_password_leaves_as_a_hash_and_is_checked_before(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(f"{PASSWORD}\n", monkeypatch)
    done = cli("user", "create", "ann", "--admin", "--json")
    assert json.loads(done.out)["name"] == "ann"
    [change] = gateway.user_changes
    assert (change.name, change.is_admin, change.password) == ("ann", True, hash_password(PASSWORD))
    give("short\n", monkeypatch)
    refused = cli("user", "create", "ann")
    assert (refused.status, len(gateway.user_changes)) == (2, 1)
    assert refused.err == "error: a password has at least 8 characters; choose a longer one\n"
    assert cli("user", "create", "ann", "--no-password").status == 0
    assert not gateway.user_changes[1].HasField("password")


def test_a_change_of_the_own_password_keeps_the_login(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(cli, gateway, monkeypatch)
    give(f"{PASSWORD}\n", monkeypatch)
    done = cli("user", "change-password")
    assert (done.status, done.out) == (0, "changed the password of user ann\n")
    assert gateway.user_changes[0].password == hash_password(PASSWORD)
    assert json.loads(path.read_text())["token"] == SESSION


def test_a_logout_ends_the_session_and_removes_the_login(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(cli, gateway, monkeypatch)
    assert cli("user", "logout").status == 0
    assert "LogOut" in gateway.calls
    assert not path.exists()


def test_lists_and_tokens_are_shown_as_text_and_json(cli: Cli, gateway: StandInGateway) -> None:
    assert "ACTIVE" in cli("user", "list").out
    assert json.loads(cli("user", "list", "--json").out)[0]["is_active"] is True
    assert cli("token", "create").out == "gangline_secret\n"
    assert json.loads(cli("token", "create", "--json").out)["secret"] == "gangline_secret"
    assert "never" in cli("token", "list").out
    assert cli("token", "revoke", "3").out == "revoked token 3 of ann\n"
    nothing = cli("user", "edit", "ann")
    assert (nothing.status, nothing.err.count("\n")) == (2, 1)


def test_roles_and_groups_are_shown_and_changed(cli: Cli) -> None:
    assert cli("user", "whoami", "--can").out.splitlines() == [
        "ann",
        "groups: everyone",
        "operates the work of others too, as long as no role for the cluster was changed",
        "lab: editor, who sees everything in it, and creates and changes what is this user's own",
    ]
    assert cli("group", "show", "team").out.splitlines() == ["ann", "bob"]
    assert cli("group", "show", "other").status == 2
    assert cli("group", "add", "team", "ann").out == "changed group team: ann, bob\n"
    assert cli("role", "assign", "editor", "--group", "team").out == "group team is editor for the cluster\n"
    removed = cli("role", "remove", "--user", "ann", "--workspace", "lab").out
    assert removed == "ann has no role of its own in workspace lab\n"
    assert cli("role", "list").out.split() == ["WORKSPACE", "ROLE", "SUBJECT", "lab", "EDITOR", "group", "team"]
