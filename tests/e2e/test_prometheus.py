"""A real Prometheus with the configuration from deploy/ finds every service and a running trial, and scrapes them.

Only the gateway's address and the intervals are changed. Needs Debian's package prometheus.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.cluster import Cluster, running_cluster
from tests.support.gated_trial import Gate
from tests.support.port import own_ports
from tests.support.source import ROOT
from tests.support.wait import until_async

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="it comes with Debian's package prometheus")

# Long enough to be still running when it is asked for; the test ends it.
LONG: dict[str, Any] = {
    "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 100_000}},
    "min_validation_period": {"batches": 20},
    "min_checkpoint_period": {"batches": 40},
}
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "gangline.json").read_text())
# What the test's machine lacks.
GPU_PANELS = {"GPU utilisation", "GPU memory in use"}


def panel_queries() -> dict[str, list[str]]:
    """Returns the queries of each panel by its title, with a short interval in place of Grafana's."""
    return {
        panel["title"]: [target["expr"].replace("$__rate_interval", "5m") for target in panel["targets"]]
        for panel in DASHBOARD["panels"]
        if panel["type"] != "row"
    }


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url)

    async def query(self, expression: str) -> dict[str, float]:
        """Values by `instance_id`; empty while there are none or Prometheus does not answer yet."""
        try:
            answer = await self._http.get("/api/v1/query", params={"query": expression})
        except httpx.TransportError:
            return {}
        if answer.status_code != 200:
            return {}
        series: list[dict[str, Any]] = answer.json()["data"]["result"]
        return {entry["metric"].get("instance_id", ""): float(entry["value"][1]) for entry in series}

    async def find_filled(self, titles: set[str]) -> set[str]:
        """Returns those of the panels of which every query has a number now."""
        filled = set()
        for title in titles:
            answers = [await self.query(expression) for expression in panel_queries()[title]]
            if all(any(map(math.isfinite, values.values())) for values in answers):
                filled.add(title)
        return filled

    async def close(self) -> None:
        await self._http.aclose()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as unix sockets want it."""
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        yield Path(name)


@contextmanager
def _running_prometheus(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Its URL. Its own output goes to prometheus.log."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    [discovery] = config["scrape_configs"][0]["http_sd_configs"]
    discovery["url"] = discovery["url"].replace("http://127.0.0.1:8080", cluster.http_url)
    discovery["refresh_interval"] = "1s"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = own_ports(1)
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("w") as log:
        command = ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


async def test_prometheus_scrapes_a_running_trial(folder: Path) -> None:
    gate = Gate(folder / "gate")
    # It takes little from the cluster that is looked at.
    gate.pace(0.05)
    gate.allow(100_000)
    # The page of a fork has the metrics of all services.
    started = running_cluster(folder, is_forked=False)
    with started as cluster, cluster.connect() as client, _running_prometheus(cluster, folder) as url:
        prometheus = Prometheus(url)

        async def scheduler_up() -> bool:
            return (await prometheus.query("sum(gangline_scheduler_is_leader)")).get("") == 1

        # A rate has to see the counters before the first start.
        await until_async(scheduler_up, "a scrape of the scheduler", seconds=60)
        experiment = client.create_experiment(gate.config(**LONG), gate.code).experiment

        async def steps() -> dict[str, float]:
            return await prometheus.query(
                f'gangline_trial_runner_step_seconds_count{{trial_id="{experiment.id}.1"}} > 0'
            )

        async def loss() -> dict[str, float]:
            return await prometheus.query('gangline_trial_runner_loss{group="training"}')

        async def all_up() -> bool:
            up = await prometheus.query("up")
            return len(up) >= 6 and set(up.values()) == {1.0}

        by_runner = await until_async(steps, "a step of the running trial in Prometheus", seconds=60)
        await until_async(all_up, "scrapes of scheduler, gateway, two agents and two trial runners", seconds=30)

        assert set(by_runner) <= {f"{experiment.id}.1.1/0", f"{experiment.id}.1.1/1"}
        assert sum((await prometheus.query("gangline_scheduler_is_leader")).values()) == 1
        assert (await prometheus.query('sum(gangline_scheduler_slots{state="used"})'))[""] == 4
        losses = await until_async(loss, "a training loss in Prometheus", seconds=30)
        assert all(0 <= loss < 100 for loss in losses.values())
        assert losses.keys() >= by_runner.keys()
        seconds = await prometheus.query("gangline_trial_runner_step_seconds_sum")
        assert all(seconds[runner] > 0 for runner in by_runner), "only the chief's runner counts steps"

        # It waits until the first has ended.
        waiting = client.create_experiment(gate.config(**LONG), gate.code).experiment
        empty = set(panel_queries()) - GPU_PANELS

        async def are_filled() -> bool:
            empty.difference_update(await prometheus.find_filled(empty))
            return not empty

        async def queue_length() -> dict[str, float]:
            lengths = await prometheus.query("max by (pool) (gangline_scheduler_queue_length)")
            return lengths if lengths == {"": 1.0} else {}

        await until_async(queue_length, "the second experiment in the queue", seconds=30)
        client.kill_experiment(waiting.id)
        try:
            await until_async(are_filled, "a number in every panel", seconds=60)
        except AssertionError as error:
            raise AssertionError(f"no number in {sorted(empty)}") from error
        for title in ("Waiting", "Queue length"):
            [expression] = panel_queries()[title]

            async def is_zero(expression: str = expression) -> bool:
                return await prometheus.query(expression) == {"": 0.0}

            await until_async(is_zero, f"0 in the panel {title}", seconds=30)

        client.kill_experiment(experiment.id)

        async def is_forgotten() -> bool:
            return not await prometheus.query('up{service="trial_runner"}')

        await until_async(is_forgotten, "the ended trial to vanish from discovery", seconds=60)
        await prometheus.close()
