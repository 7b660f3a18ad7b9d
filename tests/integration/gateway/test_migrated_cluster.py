"""A cluster whose settings were made from Determined's files: real processes start from them and take its pools."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.client import Client
from gangline.errors import GanglineError
from gangline.migrate.cluster import migrate_cluster, write_files
from services.common.etcd import EtcdSettings
from tests.support.gateway import GatewayProcess
from tests.support.scheduler import ADMIN_TOKEN, CLUSTER_TOKEN, SchedulerProcess
from tests.support.source import ROOT
from tests.support.wait import until_async

MASTER = """
resource_manager: {type: agent, default_compute_resource_pool: a100, scheduler: {type: fair_share}}
resource_pools: [{pool_name: default}, {pool_name: a100, scheduler: {type: priority, default_priority: 7}}]
checkpoint_storage: {type: shared_fs, host_path: SHARED, storage_path: saved}
task_container_defaults: {environment_variables: [LAB=1]}
"""
AGENT = "master_host: head-1\nagent_id: gpu-7\nresource_pool: a100\nartificial_slots: 2\n"


def _start_agent(*flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "services.agent", *flags, "--metrics-listen", "127.0.0.1:0", "--no-warm"]
    return subprocess.Popen(command, cwd=ROOT)


async def test_scheduler_gateway_and_agent_start_from_the_written_files(
    tmp_path: Path, etcd_settings: EtcdSettings
) -> None:
    """Only the addresses and the places of tokens and of the database are this machine's."""
    (tmp_path / "master.yaml").write_text(MASTER.replace("SHARED", str(tmp_path / "shared")))
    (tmp_path / "agent.yaml").write_text(AGENT)
    files = tmp_path / "files"
    write_files(migrate_cluster(tmp_path / "master.yaml", tmp_path / "agent.yaml"), files)
    scheduler = SchedulerProcess(
        tmp_path / "s", etcd_settings, flags=("--settings", str(files / "scheduler.toml")), storage=""
    )
    await scheduler.start()
    (tmp_path / "g").mkdir()
    gateway = GatewayProcess(tmp_path / "g", ",".join(etcd_settings.endpoints), settings=str(files / "gateway.toml"))
    del gateway.flags["storage-url"]
    token = tmp_path / "token"
    token.write_text(CLUSTER_TOKEN)
    flags = ("--settings", str(files / "agent.toml"), "--scheduler-addresses", scheduler.address)
    agent = _start_agent(*flags, "--cluster-token-file", str(token), "--state-dir", str(tmp_path / "a"))
    try:
        await gateway.start()
        with Client(gateway.addresses["grpc"], ADMIN_TOKEN, retry_seconds=40) as client:

            async def has_joined() -> bool:
                assert agent.poll() is None, "the agent has ended"
                views = await asyncio.to_thread(client.list_agents)
                return [(view.agent.id, view.agent.pool, len(view.agent.slots)) for view in views] == [
                    ("gpu-7", "a100", 2)
                ]

            await until_async(has_joined, "the agent in its pool", 60)
            template = (files / "template.yaml").read_text()
            await asyncio.to_thread(client.set_template, "determined", template)
            await asyncio.to_thread(client.create_workspace, "lab", resource_pool="a100", template="determined")
            with pytest.raises(GanglineError, match="the pools are a100, default"):
                await asyncio.to_thread(client.create_workspace, "x", resource_pool="none")
        assert (tmp_path / "shared" / "saved" / "gangline").is_dir()
    finally:
        agent.terminate()
        await asyncio.to_thread(agent.wait, 30)
        await gateway.end()
        scheduler.end()
