"""The options of `up`, the ports and command lines that follow from them, and the owner of the data directory."""

from __future__ import annotations

import importlib.util
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from gangline.local.layout import Layout, layout_of
from gangline.local.lock import acquire_lock, is_locked
from gangline.local.plan import ClusterPlan, UpRequest, make_plan
from gangline.local.port import HOST, find_free_ports
from gangline.local.program import make_programs
from gangline.local.up import _with_ports, start_cluster


def test_two_agents_of_two_slots_are_the_default() -> None:
    assert make_plan(None, "2") == ClusterPlan(2, "2")
    assert make_plan(None, "auto") == ClusterPlan(1, "auto")
    assert make_plan(3, "1", http_port=80).port_by_name == {"gateway.http": 80}
    assert make_plan(None, None) == ClusterPlan(2, "2")
    assert make_plan(1, None) == ClusterPlan(1, "2")


def test_options_that_a_running_cluster_does_not_have_are_named() -> None:
    running = ClusterPlan(2, "1", {"gateway.http": 80, "gateway.grpc": 81})
    assert UpRequest().find_differences(running) == []
    assert UpRequest(2, "1", 80, 81).find_differences(running) == []
    assert UpRequest(1, "auto", 90, 91).find_differences(running) == [
        "--agents 2",
        "--slots 1",
        "--http-port 80",
        "--grpc-port 81",
    ]


@pytest.mark.parametrize(
    ("agents", "slots", "message"),
    [
        (2, "two", "--slots takes a number from 1 to 64, or auto for this machine's GPUs, not 'two'"),
        (2, "0", "--slots takes a number from 1 to 64, or auto for this machine's GPUs, not '0'"),
        (0, "2", "--agents takes a number from 1 to 64, not 0"),
        (2, "auto", "--slots auto gives this machine's GPUs to one agent, not to 2"),
    ],
)
def test_what_cannot_be_started_is_refused(agents: int, slots: str, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        make_plan(agents, slots)
    assert caught.value.message == message


def test_plan_survives_its_file() -> None:
    plan = ClusterPlan(2, "auto", {"gateway.http": 8080})
    assert ClusterPlan.parse(plan.to_json()) == plan


def test_programs_listen_on_the_planned_ports_and_know_one_another() -> None:
    plan = make_plan(2, "4")
    ports = {name: 10_000 + number for number, name in enumerate(plan.port_names)}
    layout = Layout(Path("/data"))
    programs = {p.name: p for p in make_programs(layout, ClusterPlan(2, "4", ports), "/py", Path("/etcd"))}
    assert list(programs) == ["etcd", "scheduler", "gateway", "agent-1", "agent-2"]
    assert len(set(ports.values())) == len(plan.port_names)
    flags = {name: dict(zip(p.arguments[3::2], p.arguments[4::2], strict=False)) for name, p in programs.items()}
    assert programs["etcd"].environment == (("GOMAXPROCS", "1"),)
    assert programs["etcd"].addresses == {"client": "unix:/data/etcd-client:0"}
    assert flags["scheduler"]["--etcd-endpoints"] == flags["gateway"]["--etcd-endpoints"] == "unix:etcd-client:0"
    assert flags["agent-2"]["--scheduler-addresses"] == flags["scheduler"]["--listen"]
    assert flags["agent-2"]["--state-dir"] == "/data/agents/agent-2"
    assert flags["scheduler"]["--storage-url"] == flags["gateway"]["--storage-url"] == "file:///data/storage"
    assert programs["etcd"].stage < programs["scheduler"].stage


def test_a_service_reads_the_settings_that_lie_in_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "scheduler.toml").write_text("kill_grace_seconds = 1\n")
    ports = dict.fromkeys(make_plan(1, "1").port_names, 10_000)
    programs = make_programs(Layout(tmp_path), ClusterPlan(1, "1", ports), "/py", Path("/etcd"))
    given = {program.name: program.arguments[-2:] for program in programs if "--settings" in program.arguments}
    assert given == {"scheduler": ("--settings", str(tmp_path / "scheduler.toml"))}


def test_tokens_and_folder_are_private_and_kept(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    layout.create()
    token = layout.read_admin_token()
    layout.create()
    assert layout.read_admin_token() == token != layout.cluster_token.read_text().strip()
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700
    for path in (layout.admin_token, layout.cluster_token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_data_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GanglineError) as caught:
        Layout(tmp_path / "file" / "cluster").create()
    assert caught.value.message == (
        f"cannot use the data directory {tmp_path}/file/cluster: Not a directory; choose another with --data-dir"
    )


def test_default_directory_follows_the_home_of_gangline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path))
    assert layout_of(None).root == tmp_path / "cluster"
    assert layout_of(tmp_path / "a" / ".." / "b").root == tmp_path / "b"


def test_ports_are_free_distinct_and_out_of_the_kernels_way() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        ports = find_free_ports(20, [12_345])
        assert len(set(ports)) == 20
        assert taken.getsockname()[1] not in ports
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < first_ephemeral
    for port in ports:
        with socket.socket() as probe:
            probe.bind((HOST, port))


def test_lock_is_seen_by_others_and_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    script = (
        "import sys; from pathlib import Path; from gangline.local.lock import acquire_lock;"
        "print(acquire_lock(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert is_locked(path)
        assert not acquire_lock(path)
        holder.kill()
    assert not is_locked(path)


def test_ports_of_the_last_time_are_kept_where_they_are_free() -> None:
    plan = make_plan(1, "1", http_port=12_000)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        free = find_free_ports(2)
        former = {
            "scheduler.grpc": free[0],
            "etcd.client": 6,
            "gateway.http": free[1],
            "gateway.grpc": taken.getsockname()[1],
            "agent-9.metrics": 5,
        }
        chosen = _with_ports(plan, former).port_by_name
    assert chosen["scheduler.grpc"] == free[0]
    assert chosen["gateway.http"] == 12_000
    assert chosen["gateway.grpc"] != former["gateway.grpc"]
    assert set(chosen) == set(plan.port_names)


def test_agents_have_joined_when_each_has_the_slots_that_it_was_started_with() -> None:
    plan = ClusterPlan(2, "2")
    assert plan.count_slots({"agent-1": 2}) is None
    assert plan.count_slots({"agent-1": 2, "agent-2": 3}) is None, "it is what it had the last time"
    assert plan.count_slots({"agent-1": 2, "agent-2": 2, "agent-3": 2}) == 4
    assert ClusterPlan(1, "auto").count_slots({"agent-1": 8}) == 8
    assert ClusterPlan(1, "auto").count_slots({}) is None


def test_a_client_alone_is_told_what_a_cluster_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "structlog" else find(name))
    with pytest.raises(GanglineError) as caught:
        start_cluster(Layout(tmp_path / "data"), make_plan(None, None), 0, print, lambda *_: None)
    assert caught.value.message == (
        "a cluster needs gangline[cluster,train], and this Python lacks structlog; type: pip install "
        "'gangline[cluster,train]' (docs/install.md says from where)"
    )
    assert not (tmp_path / "data").exists()


def test_former_port_of_another_service_gives_way_to_a_requested_one() -> None:
    [port] = find_free_ports(1)
    plan = _with_ports(make_plan(1, "1", http_port=port), {"scheduler.grpc": port})
    assert plan.port_by_name["gateway.http"] == port
    assert len(set(plan.port_by_name.values())) == len(plan.port_names)


def test_two_options_for_one_port_are_refused() -> None:
    with pytest.raises(GanglineError, match="--http-port and --grpc-port are both 90; give two different ports"):
        make_plan(None, None, http_port=90, grpc_port=90)
