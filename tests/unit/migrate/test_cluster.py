"""`gangline migrate cluster`: Determined's cluster files become settings that our services load, and no key is lost."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.cli.main import run
from gangline.config.layer.template_check import check_template
from gangline.errors import GanglineError
from gangline.migrate.cluster import Migration, migrate_cluster, write_files
from gangline.migrate.cluster_key import AGENT, MASTER, Fate
from gangline.migrate.cluster_settings import migrate_agent, migrate_master
from gangline.migrate.cluster_source import KeyResult
from services.agent.settings import AgentSettings
from services.common.setting.settings import ServiceSettings
from services.gateway.program import GatewaySettings
from services.scheduler.settings import SchedulerSettings
from tests.support.examples import examples

_CONTAINER = """
  shm_size_bytes: 4294967296
  image: {gpu: lab/torch:2, cpu: lab/torch:2-cpu}
  force_pull_image: true
  environment_variables: {gpu: [NCCL_DEBUG=INFO], cpu: []}
  add_capabilities: [SYS_PTRACE]
  drop_capabilities: [NET_RAW]
  devices: [{host_path: /dev/fuse, container_path: /dev/fuse}]
  bind_mounts: [{host_path: /data, container_path: /data, read_only: true}]
  log_policies: [{name: ecc, pattern: "uncorrectable ECC", action: exclude_node}]
  preemption_timeout: 600
"""
MASTER_YAML = f"""
port: 8888
log: {{level: WARN, color: true}}
cluster_name: lab
db: {{user: post gres, password: s3cr3t, host: "fd00::7", port: "5433", name: determined, ssl_mode: verify-full,
     ssl_root_cert: /etc/ssl/db.crt}}
resource_manager:
  type: agent
  default_compute_resource_pool: a100
  default_aux_resource_pool: cpu
  scheduler: {{type: priority, fitting_policy: worst, default_priority: 50, preemption: true}}
resource_pools:
  - pool_name: a100
    description: eight each
    max_aux_containers_per_agent: 10
    provider: {{type: aws, max_instances: 5, instance_type: p4d}}
    task_container_defaults: {{environment_variables: [POOL=a100]}}
  - pool_name: cpu
    scheduler: {{type: fair_share, allow_heterogeneous_fits: true}}
checkpoint_storage: {{type: shared_fs, host_path: /mnt/lab/, storage_path: saved, save_experiment_best: 1,
                     save_trial_best: 2, save_trial_latest: 3, propagation: rshared}}
retention_policy: {{log_retention_days: 90, schedule: 24h}}
security: {{tls: {{cert: /c, key: /k}}, authz: {{type: basic}}, initial_user_password: pw1, ssh: {{}}}}
telemetry: {{enabled: true, otel_enabled: false}}
webhooks: {{signing_key: x}}
task_container_defaults:{_CONTAINER}  dtrain_network_interface: ib0
  network_mode: host
  startup_hook: pip install lab
  registry_auth: {{username: u, password: pw2, serveraddress: r}}
"""
AGENT_YAML = """
master_host: head-1
master_port: 8080
agent_id: gpu-7
resource_pool: a100
label: rack7
slot_type: cuda
artificial_slots: 0
visible_gpus: "0,1"
debug: true
http_proxy: http://proxy
security: {tls: {enabled: false}}
hooks: {on_connection_lost: [shutdown]}
"""
SERVICES: dict[str, type[ServiceSettings]] = {
    "scheduler.toml": SchedulerSettings,
    "gateway.toml": GatewaySettings,
    "agent.toml": AgentSettings,
}
OTHER_STORAGES = (
    "{type: s3, bucket: b, prefix: /p/, access_key: a, secret_key: s, endpoint_url: http://m:9000}",
    "{type: gcs, bucket: b}",
    "{type: azure, container: c, connection_string: x}",
    "{type: directory, container_path: /data}",
)


def _write(folder: Path, master: str = MASTER_YAML, agent: str | None = AGENT_YAML) -> tuple[Path, Path | None]:
    (folder / "master.yaml").write_text(master)
    if agent is None:
        return folder / "master.yaml", None
    (folder / "agent.yaml").write_text(agent)
    return folder / "master.yaml", folder / "agent.yaml"


def _load(migration: Migration, folder: Path) -> dict[str, Any]:
    """Loads every file as its service does; a template is checked as `gangline template set` does."""
    write_files(migration, folder)
    loaded: dict[str, Any] = {}
    for name, text in migration.text_by_name.items():
        if name in SERVICES:
            loaded[name] = SERVICES[name].load(["--settings", str(folder / name)], environment={})
        else:
            loaded[name] = yaml.safe_load(text)
            check_template(json.dumps(loaded[name]))
    return loaded


def _fates(entries: list[KeyResult]) -> dict[str, Fate]:
    assert len({(entry.file, entry.path) for entry in entries}) == len(entries), "a key has one fate"
    assert not [entry for entry in entries if "\n" in entry.note]
    return {entry.path: entry.fate for entry in entries}


def test_services_load_what_was_made_of_a_whole_cluster(tmp_path: Path) -> None:
    loaded = _load(migrate_cluster(*_write(tmp_path)), tmp_path / "out")
    scheduler, gateway, agent = (loaded[name] for name in SERVICES)
    assert scheduler.storage_url == gateway.storage_url == "/mnt/lab/saved/gangline"
    assert (scheduler.network_interface, scheduler.log_level, gateway.log_level) == ("ib0", "warning", "warning")
    pools = {pool.name: pool for pool in scheduler.pools}
    assert list(pools) == ["default", "a100", "cpu"]
    assert (pools["a100"].policy, pools["a100"].fitting, pools["a100"].default_priority) == ("priority", "worst", 50)
    assert (pools["cpu"].policy, pools["cpu"].allow_heterogeneous_fits, pools["cpu"].fitting) == (
        "fair_share", True, "best",
    )  # fmt: skip
    assert pools["a100"].is_preemption_on
    assert gateway.http_listen == "0.0.0.0:8888"
    assert gateway.database_url == (
        "postgresql://post%20gres@[fd00::7]:5433/gangline?sslmode=verify-full&sslrootcert=%2Fetc%2Fssl%2Fdb.crt"
    )
    assert gateway.log_retention_days == 90
    assert (agent.id, agent.pool, agent.slots, agent.labels) == ("gpu-7", "a100", "auto", {"label": "rack7"})
    assert (agent.scheduler_addresses, agent.log_level) == (["head-1:8082"], "debug")
    template = loaded["template.yaml"]
    assert template["environment"]["environment_variables"] == {"cuda": ["NCCL_DEBUG=INFO"], "cpu": []}
    assert template["resources"]["resource_pool"] == "a100"
    assert template["checkpoint_storage"] == {"save_experiment_best": 1, "save_trial_best": 2, "save_trial_latest": 3}
    assert (template["preemption_timeout"], template["bind_mounts"][0]["host_path"]) == (600, "/data")
    assert loaded["template-a100.yaml"]["environment"] == {"environment_variables": ["POOL=a100"]}


def test_no_secret_is_written_or_reported(tmp_path: Path) -> None:
    storages = ["{type: s3, bucket: b, access_key: s3cr3t, secret_key: s3cr3t}"]
    storages += ["{type: azure, container: c, connection_string: s3cr3t, credential: s3cr3t}"]
    for storage in storages:
        values = {**yaml.safe_load(MASTER_YAML), "checkpoint_storage": yaml.safe_load(storage)}
        shown = str(migrate_cluster(*_write(tmp_path, yaml.safe_dump(values), None)))
        assert not [secret for secret in ("s3cr3t", "pw2", "pw1") if secret in shown]


def test_every_key_has_one_fate_and_every_key_that_is_taken_over_is_tried_here() -> None:
    _, entries = migrate_master(yaml.safe_load(MASTER_YAML))
    fates = _fates(entries)
    assert Fate.UNKNOWN not in fates.values()
    assert fates["db.password"] is fates["security.tls"] is fates["task_container_defaults.startup_hook"] is Fate.DECIDE
    assert fates["resource_pools[0].provider"] is fates["telemetry"] is Fate.ABSENT
    assert fates["etcd"] is Fate.DECIDE, "it is always to be set"
    taken = {path.replace("[0]", "[]").replace("[1]", "[]") for path, fate in fates.items() if fate is Fate.TAKEN}
    for storage in OTHER_STORAGES:
        _, more = migrate_master({"checkpoint_storage": yaml.safe_load(storage)})
        taken |= {path for path, fate in _fates(more).items() if fate is not Fate.UNKNOWN}
    # The same function reads the defaults of a pool and of all.
    taken |= {key.replace("task_container", "resource_pools[].task_container") for key in taken}
    taken |= {key.replace("resource_manager.sch", "resource_pools[].sch") for key in taken}
    taken |= {key.replace("resource_pools[].sch", "resource_manager.sch") for key in taken}
    assert {key for key, row in MASTER.items() if row.fate is Fate.TAKEN} - taken == set()
    _, agent_entries = migrate_agent(yaml.safe_load(AGENT_YAML))
    fates = _fates(agent_entries)
    taken = {path for path, fate in fates.items() if fate is Fate.TAKEN}
    taken |= {entry.path for entry in migrate_agent({"master_host": "h", "log": {"level": "info"}})[1]}
    assert {key for key, row in AGENT.items() if row.fate is Fate.TAKEN} - taken == set()


@pytest.mark.parametrize(
    ("master", "path", "hint"),
    [
        ("clustername: x", "clustername", "did it mean cluster_name?"),
        ("db: {hots: x}", "db.hots", "did it mean host?"),
        ("resource_pools: [{pool_name: a, scheduler: {typ: priority}}]", "resource_pools[0].scheduler.typ", "type?"),
        ("resource_pools: 5", "resource_pools", "expected keys below it"),
        ("zzz: 1", "zzz", "Determined 0.38 has no such key"),
    ],
)
def test_a_key_that_is_not_determined_s_is_named(master: str, path: str, hint: str) -> None:
    _, entries = migrate_master(yaml.safe_load(master))
    [unknown] = [entry for entry in entries if entry.fate is Fate.UNKNOWN]
    assert unknown.path == path
    assert hint in unknown.note


@pytest.mark.parametrize(
    ("master", "path", "words"),
    [
        ("port: high", "port", "the string 'high' is no whole number"),
        ("port: 70000", "port", "not within 1 and 65535"),
        ("port: true", "port", "no whole number"),
        ("retention_policy: {log_retention_days: -5}", "retention_policy.log_retention_days", "not within -1"),
        ("resource_pools: [{pool_name: a}, {pool_name: a}]", "resource_pools[1]", "second pool of this name"),
        ("resource_pools: [{description: x}]", "resource_pools[0]", "has no name"),
        ('resource_pools: [{pool_name: "a\\tb"}]', "resource_pools[0]", "has no name"),
        ("resource_manager: {scheduler: {type: lottery}}", "resource_manager.scheduler.type", "none of priority"),
        ("resource_manager: {scheduler: {default_priority: 0}}", "resource_manager.scheduler.default_priority", "99"),
        ("resource_pools: [{pool_name: a, scheduler: {type: round_robin, preemption: true}}]",
         "resource_pools[0].scheduler.preemption", "does not preempt"),
        ("resource_manager: {type: kubernetes}", "resource_manager.type", "there is no kubernetes here"),
        ("checkpoint_storage: {type: tape}", "checkpoint_storage.type", "no storage"),
        ("checkpoint_storage: {type: s3}", "checkpoint_storage.bucket", "absent"),
        ("checkpoint_storage: {type: shared_fs, host_path: 'zip::x'}", "checkpoint_storage.host_path", "chains"),
        ("db: {host: h, port: x}", "db.port", "no port"),
        ("log: {level: loud}", "log.level", "no level"),
        ("task_container_defaults: {bind_mounts: [{x: a}]}", "task_container_defaults.bind_mounts", "not taken over"),
        ("task_container_defaults: {bind_mounts: [{host_path: /a, container_path: /b}]}",
         "task_container_defaults.bind_mounts", "without an image"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_taken_over_is_named_and_the_rest_still_loads(
    tmp_path: Path, master: str, path: str, words: str
) -> None:
    migration = migrate_cluster(*_write(tmp_path, master, None))
    [entry] = [entry for entry in migration.entries if entry.path == path]
    assert (entry.fate, words in entry.note) == (Fate.DECIDE, True), entry
    _load(migration, tmp_path / "out")


@pytest.mark.parametrize(
    ("agent", "slots"),
    [
        ("slot_type: none", "0"),
        ("slot_type: cpu", "1"),
        ("slot_type: gpu", "auto"),
        ("{slot_type: cpu, artificial_slots: 4}", "4"),
        ("slot_type: rocm", "auto"),
        ("slot_type: tpu", "auto"),
        ("artificial_slots: 5000", "auto"),
    ],
)
def test_slots_of_an_agent(tmp_path: Path, agent: str, slots: str) -> None:
    migration = migrate_cluster(*_write(tmp_path, "", agent))
    loaded = _load(migration, tmp_path / "out")["agent.toml"]
    assert (loaded.slots, loaded.scheduler_addresses) == (slots, ["127.0.0.1:8082"])
    decisions = {entry.path for entry in migration.entries if entry.file == "agent.yaml" and entry.fate is Fate.DECIDE}
    assert "master_host" in decisions
    assert bool(decisions & {"slot_type", "artificial_slots"}) == (
        agent.rsplit(maxsplit=1)[-1] in ("rocm", "tpu", "5000")
    )


@pytest.mark.parametrize(
    ("storage", "url"),
    [*zip(OTHER_STORAGES, ["s3://b/p/gangline", "gs://b/gangline", "az://c/gangline", "/data/gangline"], strict=True)],
)
def test_each_kind_of_storage_has_its_url(tmp_path: Path, storage: str, url: str) -> None:
    loaded = _load(migrate_cluster(*_write(tmp_path, f"checkpoint_storage: {storage}", None)), tmp_path / "out")
    assert loaded["scheduler.toml"].storage_url == url


def test_what_is_not_there_needs_one_decision_each() -> None:
    settings, entries = migrate_master({})
    assert {entry.path: entry.fate for entry in entries} == {
        "etcd": Fate.DECIDE, "checkpoint_storage.type": Fate.DECIDE,
    }  # fmt: skip
    assert [each.name for each in settings] == ["scheduler.toml", "gateway.toml"]
    defaults = {"image": "x"}
    odd = [{"pool_name": name, "task_container_defaults": defaults} for name in ("a/../b", "ok")]
    settings, _ = migrate_master({"resource_pools": odd})
    assert [each.name for each in settings][2:] == ["template-0.yaml", "template-ok.yaml"]


def test_a_pool_of_type_priority_preempts_only_where_determined_was_told(tmp_path: Path) -> None:
    master = "resource_pools: [{pool_name: a}, {pool_name: b, scheduler: {type: round_robin}}]"
    pools = _load(migrate_cluster(*_write(tmp_path, master, None)), tmp_path / "out")["scheduler.toml"].pools
    assert {pool.name: (pool.policy, pool.is_preemption_on) for pool in pools} == {
        "default": ("priority", False), "a": ("priority", False), "b": ("round_robin", False),
    }  # fmt: skip


_TEXTS = st.text(alphabet=string.printable + "é\x7f\u2028😀\"'\\", max_size=12)
_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 99999), _TEXTS, st.sampled_from(["s3", "shared_fs", "priority", "cpu"]),
    st.lists(_TEXTS, max_size=2), st.dictionaries(_TEXTS, _TEXTS, max_size=2),
)  # fmt: skip


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Makes a document of values by dotted keys; a key below a value that is none replaces it."""
    document: dict[str, Any] = {}
    for key, value in values.items():
        place = document
        *above, last = key.replace("[]", "").split(".")
        for name in above:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[last] = value
    if isinstance(document.get("resource_pools"), dict):
        document["resource_pools"] = [document["resource_pools"]]
    return document


@settings(deadline=None, max_examples=examples(40))
@given(
    st.dictionaries(st.sampled_from(sorted(MASTER)), _VALUES, max_size=12),
    st.dictionaries(st.sampled_from(sorted(AGENT)), _VALUES, max_size=6),
)
def test_whatever_the_values_are_the_services_load_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, master: dict[str, Any], agent: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    texts = [yaml.safe_dump(_nested(values), allow_unicode=False) for values in (master, agent)]
    migration = migrate_cluster(*_write(folder, *texts))
    _load(migration, folder / "out")
    _fates([entry for entry in migration.entries if entry.file == "master.yaml"])


def test_the_command_writes_a_folder_once_and_names_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    master, agent = _write(tmp_path)
    assert agent is not None
    command = ["migrate", "cluster", str(master), str(agent)]
    assert run([*command, "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "taken over:\n" in printed
    assert "needs a decision:\n" in printed
    assert f"wrote {tmp_path / 'out' / 'scheduler.toml'}" in printed
    assert (tmp_path / "out" / "template.yaml").stat().st_mode & 0o777 == 0o600, "variables may hold secrets"
    before = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    (tmp_path / "out" / "scheduler.toml").unlink()
    assert run([*command, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error == f"error: {tmp_path / 'out' / 'gateway.toml'} exists, and nothing was written; move it away, or name another folder\n"  # fmt: skip # noqa: E501  one line
    assert not (tmp_path / "out" / "scheduler.toml").exists()
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert all(f"--- {name}\n{text.rstrip()}\n" in printed for name, text in before.items())
    master.write_text("prot: 1\n")
    assert run(["migrate", "cluster", str(master), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert {"file": "master.yaml", "path": "prot", "fate": "unknown key"}.items() <= report["entries"][-1].items()


@pytest.mark.parametrize(
    ("text", "code"), [("a: [", "config.syntax"), ("- 1", "migrate.no_mapping"), ("5: x", "migrate.no_mapping")]
)
def test_what_is_no_cluster_file_is_refused_in_one_line(tmp_path: Path, text: str, code: str) -> None:
    for path, expected in ((_write(tmp_path, text, None)[0], code), (tmp_path / "none.yaml", "config.unreadable")):
        with pytest.raises(GanglineError) as failure:
            migrate_cluster(path)
        assert failure.value.code == expected
        assert str(path) in failure.value.message
        assert "\n" not in failure.value.message
