"""The access that `gangline up` leaves to another account of the same machine: nothing that answers without a token."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.etcd import launch_etcd
from gangline.local.etcd_program import find_etcd_binary
from gangline.local.layout import Layout
from gangline.local.shutdown import find_cluster_processes
from gangline.login import HOME_VARIABLE
from services.common.etcd import EtcdClient, EtcdSettings, Put
from tests.support.account import NOBODY, can_change_account, listening_addresses, run_as_nobody
from tests.support.cluster import UP_SECONDS, Cluster, run_gangline, running_cluster
from tests.support.gated_run import gated_run
from tests.support.port import own_ports

needs_root = pytest.mark.skipif(not can_change_account(), reason="only root can act as another account")

# Tries to open every path that it is given.
_OPEN = """
import socket, sys
for path in sys.argv[1:]:
    for attempt in (lambda: open(path, "rb"), lambda: socket.socket(socket.AF_UNIX).connect(path)):
        try:
            attempt()
            print("opened", path)
        except OSError:
            pass
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        # Others may come as far as the data directory, as they may in a home that is open; pytest's folders are closed.
        Path(folder).chmod(0o755)
        with running_cluster(Path(folder), agents=1, slots=4) as running:
            yield running


def put(settings: EtcdSettings, key: str, value: str) -> None:
    async def work() -> None:
        async with EtcdClient(settings) as client:
            await client.commit([Put(key, value.encode())])

    asyncio.run(work())


def get(settings: EtcdSettings, key: str) -> str:
    async def work() -> str:
        async with EtcdClient(settings) as client:
            entry = await client.get(key)
        return entry.value.decode() if entry else ""

    return asyncio.run(work())


def test_etcd_listens_on_private_sockets_alone(cluster: Cluster) -> None:
    entry = cluster.service("etcd")
    assert listening_addresses([entry.pid]) == {}
    layout = cluster.layout
    for path in (layout.etcd_socket, layout.etcd_peer_socket):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) & 0o077 == 0
    settings = EtcdSettings(endpoints=(cluster.etcd_address,))
    put(settings, "/elsewhere", "ours")
    assert get(settings, "/elsewhere") == "ours"


@needs_root
def test_another_account_opens_no_file_and_no_socket(cluster: Cluster) -> None:
    assert stat.S_IMODE(cluster.folder.stat().st_mode) == 0o700
    paths = [str(path) for path in cluster.folder.rglob("*") if not path.is_dir()]
    assert str(cluster.layout.etcd_socket) in paths
    done = run_as_nobody(_OPEN, *paths)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    # The same program finds what is open to it.
    assert run_as_nobody(_OPEN, "/etc/passwd").stdout == "opened /etc/passwd\n"


def test_everything_listens_on_the_loopback_alone(cluster: Cluster, tmp_path: Path) -> None:
    with gated_run(cluster, tmp_path) as run:
        run.gate.allow(1)
        run.wait_at(1)
        addresses_by_process = listening_addresses([process.pid for process in find_cluster_processes(cluster.layout)])
        run.finish()
    assert any("gangline-store" in name for name in addresses_by_process), addresses_by_process
    addresses = {address for own in addresses_by_process.values() for address in own}
    assert {address.rpartition(":")[0] for address in addresses} == {"127.0.0.1"}, addresses_by_process


def _up(data: Path, home: Path) -> subprocess.CompletedProcess[str]:
    words = ("up", "--data-dir", data, "--agents", "1", "--slots", "1")
    return run_gangline(words, {**os.environ, HOME_VARIABLE: str(home)}, UP_SECONDS)


def test_data_directory_of_the_version_before_goes_on_and_becomes_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version's etcd listened on two ports, which stand in its plan, and its directory could be open. The path is
    longer than the address of a socket may be, and has a comma."""
    folder = tmp_path / ("cluster, a long name " * 5)
    data = folder / "data"
    data.mkdir(parents=True)
    client_port, peer_port = own_ports(2)
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    arguments = [
        *("--data-dir", str(data / "etcd"), "--name", "local", "--initial-cluster", f"local={peer}"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
    ]
    before = launch_etcd(find_etcd_binary(), arguments, tmp_path / "log", is_tied=True)
    put(EtcdSettings(endpoints=(before.address,)), "/elsewhere", "kept")
    before.stop()
    ports = {"etcd.client": client_port, "etcd.peer": peer_port}
    (data / "plan.json").write_text(json.dumps({"num_agents": 1, "slots": "2", "port_by_name": ports}))
    data.chmod(0o755)
    monkeypatch.chdir(data)
    for _ in range(2):
        with running_cluster(folder, agents=1, slots=1) as running:
            assert get(EtcdSettings(endpoints=(f"unix:{running.layout.etcd_socket.name}",)), "/elsewhere") == "kept"
            assert stat.S_IMODE(data.stat().st_mode) == 0o700


@needs_root
def test_data_directory_of_another_account_is_refused_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, NOBODY, NOBODY)
    done = _up(data, tmp_path / "home")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot make the data directory {data} private (0700): it belongs to nobody and this is root; choose "
        "another with --data-dir\n"
    )
    assert find_cluster_processes(Layout(data)) == []
    assert list(data.iterdir()) == []
