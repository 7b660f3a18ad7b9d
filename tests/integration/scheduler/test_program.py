"""`gangline-scheduler` as a program: what it says and how it exits when it cannot work, and what it measures."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc.aio

from gangline.protocol.rpc import token_metadata
from gangline.v1 import agent_pb2, agent_pb2_grpc
from tests.integration.scheduler.conftest import Bench
from tests.support.etcd import EtcdServer
from tests.support.scheduler import CLUSTER_TOKEN, SchedulerProcess, config_json
from tests.support.source import ROOT
from tests.support.wait import until, until_async


def _run(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "services.scheduler", "--metrics-listen", "127.0.0.1:0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def _required(tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text("cluster-token-of-the-tests")
    return ["--cluster-token-file", str(token), "--storage-url", str(tmp_path), "--listen", "127.0.0.1:0"]


async def test_it_waits_for_an_etcd_that_is_away_and_says_so(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "etcd")
    server.kill()
    scheduler = SchedulerProcess(tmp_path, server.settings, "s1", ("--etcd-deadline-seconds", "1"))
    starting = asyncio.create_task(scheduler.start())
    try:
        await until(lambda: scheduler.log.exists() and "waits for a peer" in scheduler.log.read_text(), "the wait", 30)
        assert f"no etcd answered within 1 s at {server.address}; start etcd" in scheduler.log.read_text()
        assert not starting.done()
        server.restart()
        await starting
    finally:
        scheduler.end()
        server.stop()


async def test_port_in_use(bench: Bench, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        flags = [*_required(tmp_path), "--etcd-endpoints", bench.settings.endpoints[0], "--listen", address]
        code, line = await asyncio.to_thread(_run, *flags)
    assert code == 1
    assert line == (
        f"gangline-scheduler: cannot listen on {address}: the port is in use; "
        "stop what uses it or choose another with --listen"
    )


async def test_bad_settings(tmp_path: Path) -> None:
    code, line = await asyncio.to_thread(_run, "--storage-urls", "x")
    assert code == 2
    assert "did you mean --storage-url?" in line
    settings = tmp_path / "scheduler.toml"
    settings.write_text('[[resource_pools]]\npool_name = "a"\n[resource_pools.scheduler]\ntype = "prioritty"\n')
    code, line = await asyncio.to_thread(_run, *_required(tmp_path), "--settings", str(settings))
    assert code == 2
    assert "scheduler.toml" in line


async def test_metrics(bench: Bench) -> None:
    scheduler = await bench.scheduler()
    agent = await bench.agent("a1", slots=2)
    await bench.caller.submit(config_json(slots=2))
    await agent.started()
    await bench.caller.submit(config_json(slots=2))

    async def scrape() -> str | None:
        text = await asyncio.to_thread(_read, f"http://{scheduler.metrics_address}/metrics")
        return text if 'gangline_scheduler_queue_length{pool="default"} 1.0' in text else None

    text = await until_async(scrape, "one waiting request in the metrics")
    assert "gangline_scheduler_is_leader 1.0" in text
    assert 'gangline_scheduler_slots{state="used"} 2.0' in text
    assert 'gangline_scheduler_pending{reason="no_capacity"} 1.0' in text
    for phase in ("expire", "snapshot", "plan", "commit", "dispatch"):
        assert f'gangline_scheduler_cycle_seconds_count{{phase="{phase}"}}' in text


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text: str = answer.read().decode()
        return text


async def test_a_scheduler_that_stops_answers_who_waits_and_logs_no_error(bench: Bench) -> None:
    """Calls that wait for a newer leader, and heartbeats, which only the end of the server ends."""
    scheduler = await bench.scheduler()
    metadata = token_metadata(CLUSTER_TOKEN)
    async with grpc.aio.insecure_channel(scheduler.address) as channel:
        stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        request = agent_pb2.FindLeaderRequest(epoch=1 << 40, scheduler_addresses=[scheduler.address])
        finding = [asyncio.ensure_future(stub.FindLeader(request, metadata=metadata)) for _ in range(50)]
        beating = [stub.Heartbeat(metadata=metadata) for _ in range(50)]
        for call in beating:
            await call.write(agent_pb2.HeartbeatRequest(agent_id="a1", epoch=1))

        # A call after them on the same connection is answered, so they have arrived.
        await stub.FindLeader(agent_pb2.FindLeaderRequest(), metadata=metadata)
        assert await asyncio.to_thread(scheduler.end, signal.SIGTERM) == 0
        answers = await asyncio.gather(*finding)
        assert {answer.leader_address for answer in answers} <= {scheduler.address, ""}
        for call in beating:
            call.cancel()
    text = scheduler.log.read_text()
    assert "Traceback" not in text
    assert '"level": "error"' not in text
