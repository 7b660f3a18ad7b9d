"""`gangline-scheduler` as a program: what it says and how it exits when it cannot work, and what it measures."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json
from tests.support.source import ROOT
from tests.support.wait import until_async


def _run(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "services.scheduler", "--metrics-listen", "127.0.0.1:0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def _required(tmp_path: Path) -> list[str]:
    token = tmp_path / "token"
    token.write_text("cluster-token-of-the-tests")
    return ["--cluster-token-file", str(token), "--storage-url", str(tmp_path), "--listen", "127.0.0.1:0"]


async def test_without_etcd(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    flags = [*_required(tmp_path), "--etcd-endpoints", f"127.0.0.1:{port}", "--etcd-deadline-seconds", "1"]
    code, line = await asyncio.to_thread(_run, *flags)
    assert code == 1
    assert line.startswith("gangline-scheduler: ")
    assert f"127.0.0.1:{port}" in line


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
