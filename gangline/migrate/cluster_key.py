"""PURE: the keys of Determined's cluster files, master.yaml and agent.yaml, and what becomes of each here.

A key is written with dots, and `[]` for each entry of a list. A row holds for everything below its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    TAKEN = "taken over"
    ABSENT = "has no counterpart"
    DECIDE = "needs a decision"
    UNKNOWN = "unknown key"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule for one key."""

    fate: Fate
    note: str  # where the value goes, or why it goes nowhere and what to do


def _taken(*rows: tuple[str, str]) -> dict[str, KeyRule]:
    return {key: KeyRule(Fate.TAKEN, note) for key, note in rows}


def _absent(note: str, *keys: str) -> dict[str, KeyRule]:
    return {key: KeyRule(Fate.ABSENT, note) for key in keys}


def _decide(note: str, *keys: str) -> dict[str, KeyRule]:
    return {key: KeyRule(Fate.DECIDE, note) for key in keys}


_NO_CONTAINERS = "ranks are processes of the host, so it is the host's"
_NO_PODS = "there is no Kubernetes; an agent on each GPU host offers its GPUs"
_NO_SCHEDULER_BELOW = "the agents start ranks themselves; there is no Slurm or PBS below them"
_NO_ENTERPRISE = "belongs to Determined's enterprise edition"
_HOOK = "no hook runs for all trials; put its lines into the startup-hook.sh of the code, or install once on the agents"
_IMAGE_LOGIN = "a secret, so it is not written; log podman or docker of the agents in to the registry"


def _container_defaults(prefix: str, template: str) -> dict[str, KeyRule]:
    """Returns the rows of a section task_container_defaults. template: the file that holds what it sets."""
    return {
        **_taken(
            (f"{prefix}.shm_size_bytes", f"{template}: resources.shm_size"),
            (f"{prefix}.image", f"{template}: environment.image"),
            (f"{prefix}.force_pull_image", f"{template}: environment.force_pull_image"),
            (f"{prefix}.environment_variables", f"{template}: environment.environment_variables"),
            (f"{prefix}.add_capabilities", f"{template}: environment.add_capabilities"),
            (f"{prefix}.drop_capabilities", f"{template}: environment.drop_capabilities"),
            (f"{prefix}.devices", f"{template}: resources.devices"),
            (f"{prefix}.bind_mounts", f"{template}: bind_mounts"),
            (f"{prefix}.log_policies", f"{template}: log_policies"),
            (f"{prefix}.preemption_timeout", f"{template}: preemption_timeout"),
        ),
        **_decide(_HOOK, f"{prefix}.startup_hook"),
        **_decide(_IMAGE_LOGIN, f"{prefix}.registry_auth"),
        **_decide("set environment.working_directory in the template", f"{prefix}.work_dir"),
        **_absent(_NO_CONTAINERS, f"{prefix}.network_mode"),
        **_absent(_NO_PODS, *(f"{prefix}.{key}" for key in ("cpu_pod_spec", "gpu_pod_spec", "checkpoint_gc_pod_spec"))),
        **_absent(_NO_PODS, f"{prefix}.kubernetes"),
        **_absent(_NO_SCHEDULER_BELOW, f"{prefix}.slurm", f"{prefix}.pbs"),
    }


def _scheduler(prefix: str) -> dict[str, KeyRule]:
    keys = ("type", "fitting_policy", "default_priority", "preemption", "allow_heterogeneous_fits")
    return _taken(*((f"{prefix}.{key}", f"scheduler.toml: resource_pools, scheduler.{key}") for key in keys))


MASTER: Mapping[str, KeyRule] = {
    **_taken(
        ("port", "gateway.toml: http_listen"),
        ("log.level", "scheduler.toml and gateway.toml: log_level"),
        ("retention_policy.log_retention_days", "gateway.toml: log_retention_days"),
        ("task_container_defaults.dtrain_network_interface", "scheduler.toml: network_interface"),
        ("resource_manager.type", "an agent on each host, as there"),
        ("resource_manager.default_compute_resource_pool", "template.yaml: resources.resource_pool"),
        ("resource_pools[].pool_name", "scheduler.toml: resource_pools, pool_name"),
        ("checkpoint_storage.type", "scheduler.toml and gateway.toml: storage_url"),
        ("checkpoint_storage.host_path", "storage_url: a folder `gangline` of its own in it"),
        ("checkpoint_storage.storage_path", "storage_url: a folder `gangline` of its own in it"),
        ("checkpoint_storage.container_path", "storage_url: a folder `gangline` of its own in it"),
        ("checkpoint_storage.bucket", "storage_url"),
        ("checkpoint_storage.container", "storage_url"),
        ("checkpoint_storage.prefix", "storage_url, before a folder `gangline` of its own"),
        ("checkpoint_storage.save_experiment_best", "template.yaml: checkpoint_storage"),
        ("checkpoint_storage.save_trial_best", "template.yaml: checkpoint_storage"),
        ("checkpoint_storage.save_trial_latest", "template.yaml: checkpoint_storage"),
        ("db.user", "gateway.toml: database_url"),
        ("db.host", "gateway.toml: database_url"),
        ("db.port", "gateway.toml: database_url"),
        ("db.ssl_mode", "gateway.toml: database_url, sslmode"),
        ("db.ssl_root_cert", "gateway.toml: database_url, sslrootcert"),
    ),
    **_scheduler("resource_manager.scheduler"),
    **_scheduler("resource_pools[].scheduler"),
    **_container_defaults("task_container_defaults", "template.yaml"),
    **_container_defaults("resource_pools[].task_container_defaults", "template-POOL.yaml"),
    **_decide("the database is one of its own: CREATE DATABASE gangline OWNER <user>; on that server", "db.name"),
    **_decide("a secret, so it is not written; give it to the gateway in PGPASSWORD or in ~/.pgpass", "db.password"),
    **_decide(
        "credentials are not written; give them to scheduler, gateways and agents as AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or in ~/.aws",
        "checkpoint_storage.access_key",
        "checkpoint_storage.secret_key",
    ),
    **_decide("set AWS_ENDPOINT_URL for scheduler, gateways and agents", "checkpoint_storage.endpoint_url"),
    **_decide(
        "credentials are not written; give them to scheduler, gateways and agents as AZURE_STORAGE_CONNECTION_STRING, "
        "or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY",
        "checkpoint_storage.connection_string",
        "checkpoint_storage.account_url",
        "checkpoint_storage.credential",
    ),
    **_decide(
        "give the certificate to the gateway below [tls]; docs/security.md says which names it needs, and how the "
        "other services get theirs",
        "security.tls",
    ),
    **_decide("the admin token, a file that you make, is the first password", "security.initial_user_password"),
    **_decide(
        "trials run as the agent's user; docs/cluster.md says which rights that needs",
        "security.default_task",
        "security.default_task_user",
    ),
    **_decide("a request that can never fit is refused, always", "launch_error"),
    **_decide("log lines are kept in the gateway's database; a collector may read the services' own logs", "logging"),
    **_absent(_NO_CONTAINERS, "checkpoint_storage.propagation"),
    **_absent(
        "checkpoints and files for TensorBoard have folders of their own below storage_url",
        "checkpoint_storage.checkpoint_path",
        "checkpoint_storage.tensorboard_path",
    ),
    **_absent("each pool takes tasks with and without slots", "resource_manager.default_aux_resource_pool"),
    **_absent("see default_compute_resource_pool", "resource_manager.default_gpu_resource_pool"),
    **_absent("see default_aux_resource_pool", "resource_manager.default_cpu_resource_pool"),
    **_absent(
        "agents show the cluster token, not a certificate",
        "resource_manager.require_authentication",
        "resource_manager.client_ca",
    ),
    **_absent(
        "a description changes nothing",
        "cluster_name",
        "resource_manager.name",
        "resource_manager.cluster_name",
        "resource_manager.metadata",
        "resource_pools[].description",
        "resource_pools[].metadata",
    ),
    **_absent(
        _NO_PODS,
        *(
            f"resource_manager.{key}"
            for key in (
                "namespace",
                "default_namespace",
                "max_slots_per_pod",
                "slot_type",
                "slot_resource_requests",
                "kubeconfig_path",
                "determined_master_host",
                "determined_master_ip",
                "determined_master_port",
                "internal_task_gateway",
                "fluent",
                "credentials",
                "leave_kubernetes_resources",
                "kubeconfig",
            )
        ),
        "resource_pools[].kubernetes_namespace",
        "additional_resource_managers",
    ),
    **_absent(
        _NO_SCHEDULER_BELOW,
        *(
            f"resource_manager.{key}"
            for key in (
                "master_host",
                "master_port",
                "host",
                "port",
                "protocol",
                "security",
                "container_run_type",
                "auth_file",
                "job_storage_root",
                "path",
                "ld_library_path",
                "tres_supported",
                "gres_supported",
                "partition_overrides",
                "user_name",
                "group_name",
                "singularity_image_root",
                "slurm_partition",
                "launcher_jvm_args",
                "sudo_authorized",
                "apptainer_image_root",
                "job_project_source",
            )
        ),
    ),
    **_absent(
        "no host is started or ended: a host joins when its agent starts", "resource_pools[].provider", "provider"
    ),
    **_absent(
        "a pool has no limit of its own for tasks without slots",
        "resource_pools[].max_aux_containers_per_agent",
        "resource_pools[].max_cpu_containers_per_agent",
        "resource_pools[].max_cpu_containers",
    ),
    **_absent("a restarted agent always finds its ranks again", "resource_pools[].agent_reattach_enabled"),
    **_absent("agent_lease_seconds of scheduler.toml holds for all pools", "resource_pools[].agent_reconnect_wait"),
    **_absent("see resource_manager.scheduler", "scheduler"),
    **_absent("only the gateway's page of the API is served", "root", "enable_cors", "ui_customization"),
    **_absent("code_cache_mb of agent.toml bounds the agents' cache", "cache"),
    **_absent("TensorBoard and notebooks end by their own rules", "tensorboard_timeout", "notebook_timeout"),
    **_absent("log lines have no colours", "log.color"),
    **_absent("old logs are deleted every hour", "retention_policy.schedule"),
    **_absent("/metrics of each service is always there", "observability"),
    **_absent("nothing is reported to anyone", "telemetry"),
    **_absent("there are no webhooks", "webhooks"),
    **_absent("there are users and administrators, and no roles", "security.authz"),
    **_absent("a session of Determined's client lasts 7 days", "security.token", "security.session"),
    **_absent("keys for SSH are made by their owners", "security.ssh"),
    **_absent(_NO_ENTERPRISE, "saml", "oidc", "scim", "audit_logging_enabled", "genai"),
    **_absent("there is no Pachyderm", "integrations"),
    **_absent("its own switches", "internal", "__internal", "feature_switches", "config_file"),
    **_absent("ranks take ports that the kernel chooses", "reserved_ports"),
}

AGENT: Mapping[str, KeyRule] = {
    **_taken(
        ("master_host", "agent.toml: scheduler_addresses, with the scheduler's port 8082"),
        ("agent_id", "agent.toml: id"),
        ("resource_pool", "agent.toml: pool"),
        ("label", "agent.toml: labels; it chooses no agent: a pool does"),
        ("slot_type", "agent.toml: slots"),
        ("artificial_slots", "agent.toml: slots"),
        ("debug", "agent.toml: log_level"),
        ("log.level", "agent.toml: log_level"),
    ),
    **_absent("agents reach the scheduler on 8082; its `listen` sets another port", "master_port"),
    **_absent(_NO_CONTAINERS, "container_master_host", "container_master_port"),
    **_decide(
        "every GPU is a slot; disable the others, which also survives restarts: gangline slot disable AGENT/N",
        "visible_gpus",
    ),
    **_decide(
        "set it in environment.environment_variables of the template, and in the agent's unit for its own requests",
        "http_proxy", "https_proxy", "ftp_proxy", "no_proxy",
    ),
    **_decide(
        "services prove themselves by the cluster token and by certificates of their own, which gangline certs makes; "
        "set [tls] as docs/security.md says",
        "security", "tls", "cert_file", "key_file",
    ),
    **_decide("an agent that loses the scheduler goes on trying; no command runs", "hooks"),
    **_absent("an agent tries to reach the scheduler for as long as it takes",
              "agent_reconnect_attempts", "agent_reconnect_backoff"),
    **_absent("containers are an experiment's choice, by environment.image", "container_runtime", "singularity_options",
              "podman_options", "image_root", "container_auto_remove_disabled"),
    **_absent("log lines go to the gateway without another program", "fluent"),
    **_absent("log lines have no colours", "log.color"),
    **_absent("metrics_listen of agent.toml serves /metrics", "api_enabled", "bind_ip", "bind_port"),
    **_absent("its own switches", "config_file"),
}  # fmt: skip
