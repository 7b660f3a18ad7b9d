"""The units under a real systemd: installed as docs/cluster.md says, they start a cluster that trains, and each service
has no more rights than its unit claims."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gangline.local.etcd_program import find_etcd_binary
from tests.support.machine import PACKAGES, SOURCE, Machine, running_machine, why_no_machine
from tests.support.source import ROOT
from tests.support.wait import until_sync

pytestmark = pytest.mark.skipif(bool(why_no_machine()), reason=why_no_machine())

CONFINED = ("gangline-gateway", "gangline-scheduler")
GANGLINE = "/opt/gangline/bin/gangline"

ETCD = """
[Service]
User=gangline
StateDirectory=etcd
ExecStart=/opt/etcd --name=etcd-1 --data-dir=/var/lib/etcd --listen-client-urls=http://127.0.0.1:2379 \
  --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 \
  --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=etcd-1=http://127.0.0.1:2380 \
  --unsafe-no-fsync
"""

# Reports one metric, then goes on when the test makes a file.
TRAINING = """
import os
import time
from pathlib import Path

from gangline import core, get_cluster_info

gate = Path(get_cluster_info().trial.hparams["gate"])
with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 1.0})
    print("waits at the gate", os.getpid(), flush=True)
    while not gate.exists():
        time.sleep(0.05)
    with context.checkpoint.store_path({"steps_completed": 2}) as (path, _):
        (path / "weights").write_bytes(b"w")
    context.train.report_validation_metrics(2, {"loss": 0.5})
    print("went through", os.getpid(), flush=True)
"""

# As docs/cluster.md shows it: the account of the service cannot read the file itself.
CREDENTIAL = """
[Service]
LoadCredential=admin.token:/etc/gangline/admin.token
Environment=GANGLINE_ADMIN_TOKEN_FILE=%d/admin.token
"""
STORAGE = """
[Service]
ReadWritePaths=/home/gangline/storage
"""
READY_FILE = """
[Service]
Environment=GANGLINE_READY_FILE=/run/gangline/scheduler/ready
"""

# docs/cluster.md, word for word.
USER_AND_TOKENS = """
useradd --system --create-home gangline
install -d -m 0755 /etc/gangline
(umask 077; openssl rand -hex 32 >/etc/gangline/cluster.token; openssl rand -hex 32 >/etc/gangline/admin.token)
chown gangline: /etc/gangline/*.token
"""
CERTIFICATES = """
gangline certs init --cluster lab
gangline certs issue scheduler
gangline certs issue gateway --host gpu-head-1 --host gpu-head-2 --host 10.0.0.5
gangline certs issue agent gpu-7        # for each agent, with its id: by default the name of its host
"""
COPIES = """
install -d -m 0755 /etc/gangline/tls
install -m 0644 ca.crt /etc/gangline/tls/
install -m 0600 -o gangline scheduler.crt scheduler.key /etc/gangline/tls/      # on the hosts of schedulers
install -m 0600 -o gangline gateway.crt gateway.key /etc/gangline/tls/          # on the gateway's
install -m 0600 -o gangline agent-gpu-7.crt /etc/gangline/tls/agent.crt         # on the GPU host gpu-7
install -m 0600 -o gangline agent-gpu-7.key /etc/gangline/tls/agent.key
"""
SETTINGS_AND_UNITS = """
install -m 0644 deploy/settings/scheduler.toml /etc/gangline/
install -m 0644 deploy/settings/gateway.toml   /etc/gangline/
install -m 0644 deploy/settings/agent.toml     /etc/gangline/
install -m 0644 deploy/systemd/gangline-*.service /etc/systemd/system/
systemctl daemon-reload
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the three units run."""
    with running_machine(tmp_path_factory.mktemp("machine")) as running:
        _install(running)
        running.run("systemctl", "enable", "--now", "etcd", "gangline-scheduler", "gangline-gateway", "gangline-agent")
        try:
            _wait_for_cluster(running)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{_say_all(running)}") from error
        yield running


def test_docs_have_the_commands_of_this_test() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    for command in (USER_AND_TOKENS + CERTIFICATES + COPIES + SETTINGS_AND_UNITS + CREDENTIAL).strip().splitlines():
        assert command in text


def test_a_cluster_of_units_trains_while_the_agent_restarts(machine: Machine) -> None:
    number = _submit(machine, "/tmp/gate")
    rank = _wait_for_log(machine, number, r"waits at the gate (\d+)")
    before = machine.main_pid("gangline-agent")
    machine.run("systemctl", "restart", "gangline-agent")
    assert machine.main_pid("gangline-agent") not in (0, before)
    until_sync(lambda: "ALIVE" in machine.run(GANGLINE, "agent", "list"), "the return of the agent")
    machine.run("touch", "/tmp/gate")
    assert _wait_for_log(machine, number, r"went through (\d+)") == rank, "the restart ended the rank"
    machine.run(GANGLINE, "experiment", "wait", number)
    described = machine.run(GANGLINE, "experiment", "describe", number)
    assert "COMPLETED" in described, described
    assert machine.run("sh", "-c", "ls -A /mnt/gangline/checkpoints") != ""


@pytest.mark.parametrize("unit", CONFINED)
def test_service_has_no_rights_of_root(machine: Machine, unit: str) -> None:
    status = _status(machine, machine.main_pid(unit))
    account = machine.run("id", "-u", "gangline").strip()
    assert status["Uid"].split() == [account] * 4
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name


def test_scheduler_reads_a_token_that_only_root_can_read(machine: Machine) -> None:
    """The cluster has answered to this token, so the scheduler has read it."""
    refused = _as_service(machine, "gangline-scheduler", "cat /etc/gangline/admin.token")
    assert "Permission denied" in refused
    assert machine.run("stat", "-c", "%a", "/etc/gangline/admin.token") == "600\n"
    assert f'"pid": {machine.main_pid("gangline-scheduler")},' in machine.run("cat", "/run/gangline/scheduler/ready")
    for unit in (*CONFINED, "gangline-agent"):
        assert "has a secret" not in machine.journal(unit)


@pytest.mark.parametrize("unit", CONFINED)
def test_service_writes_only_where_its_unit_lets_it(machine: Machine, unit: str) -> None:
    """Also folders that its account may write: only the mounts of the unit keep it from them."""
    machine.run("install", "-d", "-o", "gangline", "/usr/local/own", "/etc/own", "/home/gangline/own", "/srv/own")
    for folder in ("/usr/local/own", "/etc/own", "/home/gangline/own", "/srv/own", "/var/lib"):
        assert "Read-only file system" in _as_service(machine, unit, f"touch {folder}/x"), folder
    assert _as_service(machine, unit, "touch /tmp/x /var/tmp/x") == ""
    assert machine.attempt("test", "-e", "/tmp/x").returncode == 1, "the unit shares /tmp with the machine"


def test_gateway_writes_storages_also_one_that_is_mounted_later(machine: Machine) -> None:
    unit = "gangline-gateway"
    folders = ("/mnt/gangline", "/var/lib/gangline/gateway", "/run/gangline/gateway", "/home/gangline/storage")
    for folder in folders:
        assert _as_service(machine, unit, f"touch {folder}/x") == "", folder
    machine.run("mkdir", "/mnt/later")
    machine.run("mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", "/mnt/later")
    assert _as_service(machine, unit, "touch /mnt/later/x") == ""
    assert machine.attempt("test", "-e", "/mnt/later/x").returncode == 0
    machine.run("umount", "/mnt/later")
    assert _as_service(machine, unit, "ls /mnt/later") == "", "a lost mount stays in the unit"


@pytest.mark.parametrize("unit", CONFINED)
def test_service_sees_no_process_of_others_and_no_device(machine: Machine, unit: str) -> None:
    pids = _as_service(machine, unit, "cd /proc; echo [0-9]*").split()
    owners = {machine.run("stat", "-c", "%U", f"/proc/{pid}").strip() for pid in pids if _is_alive(machine, pid)}
    assert owners == {"gangline"}
    assert "1" not in pids
    assert "No such file" in _as_service(machine, unit, "ls /dev/full.of.gpus /dev/kmsg")


def test_agent_and_its_ranks_may_start_setuid_programs(machine: Machine) -> None:
    """nvidia-modprobe and newuidmap need this."""
    status = _status(machine, machine.main_pid("gangline-agent"))
    assert status["Uid"].split()[0] == machine.run("id", "-u", "gangline").strip()
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("0", "0")
    assert int(status["CapEff"], 16) == 0
    kept = int(status["CapBnd"], 16)
    assert not kept >> 25 & 1, "CAP_SYS_TIME"
    assert all(kept >> number & 1 for number in (0, 1, 5, 6, 7, 12, 14, 16, 18, 19, 21, 23)), "what ranks may need"


def _install(machine: Machine) -> None:
    """Follows docs/cluster.md; only the installation by pip is replaced by the environment of the tests."""
    machine.run("sh", "-euc", USER_AND_TOKENS)
    _make_environment(machine)
    machine.run("hostname", "gpu-7")
    machine.run("sh", "-euc", "echo 127.0.0.1 gpu-7 gpu-head-1 >>/etc/hosts")
    machine.run("sh", "-euc", f"PATH=/opt/gangline/bin:$PATH; cd $(mktemp -d)\n{CERTIFICATES}cd certs\n{COPIES}")
    machine.run("mkdir", "/mnt/gangline")
    machine.run("mount", "-t", "tmpfs", "-o", "mode=0755,uid=gangline", "tmpfs", "/mnt/gangline")
    machine.run("sh", "-euc", f"cd {SOURCE}\n{SETTINGS_AND_UNITS}")
    _edit(machine, "scheduler.toml", {"endpoints": '["127.0.0.1:2379"]', "advertise_host": '"gpu-head-1"'})
    _edit(machine, "gateway.toml", {"endpoints": '["127.0.0.1:2379"]', "advertise_host": '"gpu-head-1"'})
    agent = {"scheduler_addresses": '["gpu-head-1:8082"]', "slots": "1", "advertise_host": '"gpu-7"'}
    _edit(machine, "agent.toml", agent)
    machine.copy_in(find_etcd_binary(), "/opt/etcd")
    machine.write("/etc/systemd/system/etcd.service", ETCD + "\n[Install]\nWantedBy=multi-user.target\n")
    machine.run("chown", "root:", "/etc/gangline/admin.token")
    _add_drop_in(machine, "gangline-scheduler", "credential", CREDENTIAL)
    _add_drop_in(machine, "gangline-scheduler", "ready", READY_FILE)
    machine.run("install", "-d", "-o", "gangline", "/home/gangline/storage")
    _add_drop_in(machine, "gangline-gateway", "storage", STORAGE)
    machine.run("systemctl", "daemon-reload")


def _add_drop_in(machine: Machine, unit: str, name: str, content: str) -> None:
    machine.write(f"/etc/systemd/system/{unit}.service.d/{name}.conf", content)


def _make_environment(machine: Machine) -> None:
    """Makes /opt/gangline, which has the packages and the programs of the tests' own environment."""
    # The folders above the interpreter may be closed to other accounts, as root's home is.
    for folder in [*Path(sys.base_prefix).parents, Path(sys.base_prefix)]:
        machine.run("chmod", "o+x", str(folder))
    machine.run(f"{sys.base_prefix}/bin/python3", "-m", "venv", "--without-pip", "/opt/gangline")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lines = f"{SOURCE}\nimport site; site.addsitedir('{PACKAGES}/lib/{version}/site-packages')\n"
    machine.write(f"/opt/gangline/lib/{version}/site-packages/tests.pth", lines)
    machine.run("sh", "-euc", f"cp {PACKAGES}/bin/gangline* /opt/gangline/bin/")
    machine.run("sh", "-euc", "sed -i '1s|.*|#!/opt/gangline/bin/python|' /opt/gangline/bin/gangline*")


def _edit(machine: Machine, name: str, values: dict[str, str]) -> None:
    """Sets values in a settings file, as an operator does in an editor."""
    text = machine.run("cat", f"/etc/gangline/{name}")
    for key, value in values.items():
        text, num_found = re.subn(rf"(?m)^(# )?{key} = .*$", f"{key} = {value}", text)
        assert num_found == 1, f"{name} has {num_found} lines for {key}"
    machine.write(f"/etc/gangline/{name}", text)


def _wait_for_cluster(machine: Machine) -> None:
    token = machine.run("cat", "/etc/gangline/admin.token")

    def is_ready() -> bool:
        for unit in (*CONFINED, "gangline-agent"):
            assert int(machine.run("systemctl", "show", "--property=NRestarts", "--value", unit)) == 0, unit
        login = (GANGLINE, "login", "gpu-head-1:8081", "--ca-file", "/etc/gangline/tls/ca.crt")
        if machine.attempt(*login, stdin=token).returncode != 0:
            return False
        return "ALIVE" in machine.run(GANGLINE, "agent", "list", is_checked=False)

    until_sync(is_ready, "the start of the cluster", 60)


def _submit(machine: Machine, gate: str) -> str:
    config = {
        "name": "units",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 2}},
        "hyperparameters": {"gate": gate},
    }
    machine.write("/root/code/train.py", TRAINING)
    machine.write("/root/experiment.yaml", yaml.safe_dump(config))
    answer = machine.run(GANGLINE, "experiment", "create", "/root/experiment.yaml", "/root/code")
    found = re.search(r"experiment (\d+)", answer)
    assert found, answer
    return found[1]


def _wait_for_log(machine: Machine, number: str, pattern: str) -> str:
    """Returns the first group of a pattern, when a line of the experiment's log matches."""

    def find() -> re.Match[str] | None:
        return re.search(pattern, machine.run(GANGLINE, "experiment", "logs", number, is_checked=False))

    try:
        until_sync(lambda: find() is not None, pattern, 60)
    except AssertionError as error:
        logs = machine.run(GANGLINE, "experiment", "logs", number, is_checked=False)
        raise AssertionError(f"{error}\n{logs}\n{_say_all(machine)}") from error
    found = find()
    assert found is not None
    return found[1]


def _say_all(machine: Machine) -> str:
    journals = [machine.journal(unit) for unit in ("etcd", *CONFINED, "gangline-agent")]
    return "\n".join([machine.console(), *journals])


def _status(machine: Machine, pid: int) -> dict[str, str]:
    lines = machine.run("cat", f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_alive(machine: Machine, pid: str) -> bool:
    return machine.attempt("test", "-d", f"/proc/{pid}").returncode == 0


def _as_service(machine: Machine, unit: str, script: str) -> str:
    """Returns what a script says that runs with the mounts and the account of a service."""
    enter = ["nsenter", f"--target={machine.main_pid(unit)}", "--mount", "--root", "--wd"]
    become = ["setpriv", "--reuid=gangline", "--regid=gangline", "--clear-groups"]
    return machine.run(*enter, *become, "sh", "-c", script, is_checked=False)
