"""Which local cluster commands use after an up and a down, and the login to a local cluster's own gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gangline.local.layout import Layout
from gangline.local.local_login import find_local, give_back_login, login_of, take_login
from gangline.local.plan import ClusterPlan
from gangline.login import HOME_VARIABLE, Login, load_login, save_login
from tests.support.held_lock import held_lock


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


class Machine:
    """Local clusters of which only files and locks exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._locks: dict[str, ExitStack] = {}

    def up(self, name: str, port: int) -> str:
        layout = self.layout(name)
        layout.create()
        layout.plan.write_text(ClusterPlan(1, "1", {"gateway.grpc": port, "gateway.http": port + 1}).to_json())
        self._locks[name] = ExitStack()
        self._locks[name].enter_context(held_lock(layout))
        return take_login(login_of(layout))

    def crash(self, name: str) -> None:
        self._locks.pop(name).close()

    def down(self, name: str) -> str:
        self.crash(name)
        return give_back_login(self.layout(name))

    def layout(self, name: str) -> Layout:
        return Layout(self.folder / name)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def close(self) -> None:
        for name in list(self._locks):
            self.crash(name)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def used() -> str:
    login = load_login()
    return login.data_directory if login is not None else ""


def test_login_goes_back_to_the_last_cluster_that_runs(machine: Machine) -> None:
    assert machine.up("a", 1000) == ""
    assert machine.up("b", 2000) == (
        f"commands no longer use the local cluster in {machine.path('a')}, which goes on; use it again with: "
        f"gangline up --data-dir {machine.path('a')}"
    )
    machine.up("c", 3000)
    machine.crash("b")
    assert machine.down("c") == machine.path("a")
    assert load_login() == login_of(machine.layout("a"))
    assert machine.down("a") == ""
    assert load_login() is None


def test_end_of_another_cluster_leaves_the_login(machine: Machine) -> None:
    machine.up("a", 1000)
    machine.up("b", 2000)
    assert machine.down("a") == ""
    assert used() == machine.path("b")


def test_login_of_an_earlier_version_is_given_back(machine: Machine, home: Path) -> None:
    machine.up("a", 1000)
    (home / "local-clusters.json").unlink()
    machine.up("b", 2000)
    assert machine.down("b") == machine.path("a")


@pytest.mark.parametrize("text", ["{", "7", "[7, null]"])
def test_list_that_is_none_is_replaced(machine: Machine, home: Path, text: str) -> None:
    machine.up("a", 1000)
    (home / "local-clusters.json").write_text(text)
    machine.up("b", 2000)
    assert machine.down("b") == machine.path("a")


def test_cluster_whose_files_are_gone_is_passed_over(machine: Machine) -> None:
    machine.up("a", 1000)
    machine.up("b", 2000)
    machine.layout("a").admin_token.unlink()
    assert machine.down("b") == ""
    assert load_login() is None


def test_only_a_cluster_that_goes_on_is_named(machine: Machine) -> None:
    machine.up("a", 1000)
    machine.crash("a")
    assert machine.up("b", 2000) == ""
    save_login(Login("gpu1:8081,gpu2:8081", "t"))
    assert machine.up("c", 3000) == (
        "commands no longer use gpu1:8081,gpu2:8081; log in there again with: gangline login gpu1:8081,gpu2:8081"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1000", "localhost:1000", "127.0.0.1:1000,localhost:1000"])
def test_own_gateway_is_that_of_the_local_cluster(machine: Machine, address: str) -> None:
    machine.up("a", 1000)
    machine.up("b", 2000)
    assert find_local(Login(address, "other")) == Login(address, "other", "127.0.0.1:1001", machine.path("a"))
    machine.crash("a")
    assert find_local(Login(address, "other")) is None


@pytest.mark.parametrize("address", ["gpu1:1000", "127.0.0.1:1001", "127.0.0.1:1000,gpu1:1000"])
def test_other_gateways_are_of_no_local_cluster(machine: Machine, address: str) -> None:
    machine.up("a", 1000)
    assert find_local(Login(address, "t")) is None
