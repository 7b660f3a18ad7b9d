"""Where the address and the token of a gateway come from, and that no one else can read the token."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from gangline.login import Login, find_login, forget_login, load_login, save_login

SAVED = Login("127.0.0.1:1", "saved-token", "127.0.0.1:2", "/data")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GANGLINE_GATEWAY", raising=False)
    monkeypatch.delenv("GANGLINE_TOKEN", raising=False)
    return tmp_path / "home"


def test_nothing_known_says_how_to_begin() -> None:
    with pytest.raises(GanglineError) as caught:
        find_login()
    assert caught.value.code == "login.none"
    assert caught.value.message == (
        "no cluster is known; start one here with `gangline up`, log in with `gangline login`, or set GANGLINE_GATEWAY "
        "and GANGLINE_TOKEN"
    )


def test_saved_login_is_private_and_found(home: Path) -> None:
    path = save_login(SAVED)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert find_login() == load_login() == SAVED


def test_caller_wins_over_environment_over_file(monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(SAVED)
    monkeypatch.setenv("GANGLINE_TOKEN", "env-token")
    assert find_login() == Login("127.0.0.1:1", "env-token", "127.0.0.1:2", "/data")
    monkeypatch.setenv("GANGLINE_GATEWAY", "gpu-host")
    assert find_login() == Login("gpu-host:8081", "env-token")
    assert find_login("other:5", "own") == Login("other:5", "own")


def test_address_without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(SAVED)
    monkeypatch.setenv("GANGLINE_GATEWAY", SAVED.address)
    assert find_login() == SAVED
    monkeypatch.setenv("GANGLINE_GATEWAY", "gpu-host:9")
    with pytest.raises(GanglineError) as caught:
        find_login()
    assert (caught.value.code, caught.value.message) == (
        "login.no_token",
        "no token for the gateway at gpu-host:9; set GANGLINE_TOKEN, or log in with `gangline login gpu-host:9`",
    )


def test_several_gateways_are_one_login(monkeypatch: pytest.MonkeyPatch) -> None:
    save_login(Login("gpu1:8081,gpu2:8081", "saved-token"))
    assert find_login().addresses == ("gpu1:8081", "gpu2:8081")
    monkeypatch.setenv("GANGLINE_GATEWAY", " gpu2 , [::1] ,gpu2:8081")
    with pytest.raises(
        GanglineError, match="no token for the gateways at gpu2:8081, \\[::1\\]:8081; set GANGLINE_TOKEN, or"
    ):
        find_login()
    assert find_login(token="own") == Login("gpu2:8081,[::1]:8081", "own")
    # The saved token belongs to each of the saved gateways.
    assert find_login("gpu2") == Login("gpu2:8081", "saved-token")
    monkeypatch.setenv("GANGLINE_GATEWAY", "")
    assert find_login() == Login("gpu1:8081,gpu2:8081", "saved-token")


def test_file_with_one_gateway_has_the_fields_of_earlier_versions(home: Path) -> None:
    fields = {"address": "gpu1:8081", "token": "t", "http_address": "", "data_directory": ""}
    save_login(Login("gpu1:8081", "t"))
    assert json.loads((home / "login.json").read_text()) == fields
    (home / "login.json").write_text(json.dumps({"address": "gpu1:8081", "token": "t"}))
    assert find_login() == Login("gpu1:8081", "t")


@pytest.mark.parametrize("text", ["{", "[]", '{"address": 5, "token": "t"}', '{"address": "a b", "token": "t"}'])
def test_broken_file_is_named(home: Path, text: str) -> None:
    home.mkdir()
    (home / "login.json").write_text(text)
    with pytest.raises(GanglineError, match=r"cannot use .*/login\.json: .*; delete it"):
        find_login()


def test_only_the_cluster_that_it_belongs_to_forgets_it() -> None:
    save_login(SAVED)
    forget_login("/other")
    assert load_login() == SAVED
    forget_login("/data")
    assert load_login() is None
