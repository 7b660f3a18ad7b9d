"""`gangline login`: what it stores, where its token comes from, and that it stores nothing that does not work."""

from __future__ import annotations

import io
import json
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.login import Login, save_login
from tests.integration.cli.conftest import Cli
from tests.support.held_lock import held_lock
from tests.support.stand_in_gateway import TOKEN, StandInGateway


@pytest.fixture
def path(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The login file; nothing else names a gateway or a token."""
    monkeypatch.delenv("GANGLINE_GATEWAY")
    monkeypatch.delenv("GANGLINE_TOKEN")
    return tmp_path / "home" / "login.json"


def give(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_login_is_what_later_commands_use(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(TOKEN + "\n", monkeypatch)
    done = cli("login", f" {gateway.address}, 127.0.0.1:9")
    assert (done.status, done.err) == (0, "")
    assert done.out == f"logged in to {gateway.address}, 127.0.0.1:9; the login is in {path}\n"
    assert json.loads(path.read_text())["address"] == f"{gateway.address},127.0.0.1:9"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN not in done.out
    assert cli("experiment", "list").status == 0


def test_token_comes_from_the_environment(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
    assert cli("login", gateway.address).status == 0
    assert json.loads(path.read_text())["token"] == TOKEN


def test_refused_token_is_not_stored(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give("wrong\n", monkeypatch)
    done = cli("login", gateway.address)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert "GANGLINE_TOKEN" not in done.err
    assert not path.exists()
    monkeypatch.setenv("GANGLINE_TOKEN", "wrong")
    assert cli("login", gateway.address).status == 2


def test_variable_that_wins_is_named(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_GATEWAY", "gpu9")
    give(TOKEN + "\n", monkeypatch)
    done = cli("login", gateway.address)
    assert done.status == 0
    assert done.err == (
        "warning: GANGLINE_GATEWAY is set in this shell, and commands use it instead of the login; unset it\n"
    )


def test_folder_that_cannot_be_written_is_one_line(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_HOME", "/proc/nothing")
    give(TOKEN + "\n", monkeypatch)
    done = cli("login", gateway.address)
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "error: cannot write the login to /proc/nothing/login.json: No such file or directory; "
        "set GANGLINE_HOME to another folder\n"
    )


def test_bytes_that_are_no_text_are_no_token(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    done = cli("login", gateway.address)
    assert (done.status, done.err.count("\n"), gateway.calls) == (2, 1, [])


@pytest.mark.parametrize("text", ["", "\n", "caf\u00e9\n"])
def test_without_a_token_nothing_is_sent(
    cli: Cli, gateway: StandInGateway, path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    give(text, monkeypatch)
    done = cli("login", gateway.address)
    assert (done.status, gateway.calls) == (2, [])
    assert done.err == "error: there is no token; set GANGLINE_TOKEN, or give it on the standard input\n"


def test_bad_address_is_one_line(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(TOKEN + "\n", monkeypatch)
    done = cli("login", "gpu1:http")
    assert done.status == 2
    assert done.err == (
        "error: the address has 'gpu1:http', whose port is no number from 1 to 65535; write host:port, for several "
        "gateways gpu1:8081,gpu2:8081\n"
    )
    monkeypatch.setenv("GANGLINE_GATEWAY", "gpu1,,gpu2")
    monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
    done = cli("experiment", "list")
    assert done.status == 2
    assert done.err == (
        "error: GANGLINE_GATEWAY has an empty address; write host:port, for several gateways gpu1:8081,gpu2:8081\n"
    )


def test_login_over_the_one_of_a_local_cluster_that_runs_says_so(
    cli: Cli, gateway: StandInGateway, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Layout(tmp_path / "data")
    local.create()
    for is_running in (True, False):
        save_login(Login("127.0.0.1:1", "local", "127.0.0.1:2", str(local.root)))
        give(TOKEN + "\n", monkeypatch)
        with held_lock(local) if is_running else nullcontext():
            done = cli("login", gateway.address)
        warning = (
            f"warning: commands no longer use the local cluster in {local.root}; stop it with: gangline down "
            f"--data-dir {local.root}\n"
        )
        assert done.err == (warning if is_running else "")
        assert json.loads(path.read_text())["data_directory"] == ""


def test_login_to_the_gateway_of_the_local_cluster_keeps_it(
    cli: Cli, gateway: StandInGateway, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Layout(tmp_path / "data")
    local.create()
    port = int(gateway.address.rpartition(":")[2])
    local.plan.write_text(ClusterPlan(1, "1", {"gateway.grpc": port, "gateway.http": 2}).to_json())
    save_login(Login(gateway.address, "former", "127.0.0.1:2", str(local.root)))
    give(TOKEN + "\n", monkeypatch)
    with held_lock(local):
        done = cli("login", gateway.address)
    assert (done.status, done.err) == (0, "")
    saved = Login(**json.loads(path.read_text()))
    assert saved == Login(gateway.address, TOKEN, "127.0.0.1:2", str(local.root))
