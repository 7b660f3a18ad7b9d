"""Prometheus accepts the configuration in deploy/, which names the gateway's defaults and nothing else."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from services.gateway.http.admission import OPEN_PATHS
from services.gateway.program import GatewaySettings
from tests.support.source import ROOT

CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool comes with Debian's package prometheus")
def test_prometheus_accepts_it() -> None:
    done = subprocess.run(["promtool", "check", "config", str(CONFIG)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_asks_the_gateway_where_it_listens_by_default() -> None:
    [job] = yaml.safe_load(CONFIG.read_text())["scrape_configs"]
    [discovery] = job["http_sd_configs"]
    port = GatewaySettings.model_fields["http_listen"].default.rpartition(":")[2]
    assert discovery["url"] == f"http://127.0.0.1:{port}/prom/http-sd"
    assert {"/prom/http-sd", "/metrics"} <= OPEN_PATHS
