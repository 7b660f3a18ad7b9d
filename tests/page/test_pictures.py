"""Pictures of views for docs/images, of a search in progress. Only with `--pictures`: `make pictures`."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.support.browser import window
from tests.support.cluster import Cluster
from tests.support.source import ROOT
from tests.support.wait import until_sync

FOLDER = ROOT / "docs/images"
SIZE: ViewportSize = {"width": 1280, "height": 760}
# More than this makes a clone of the repository slow.
MAX_BYTES = 200_000
# User code, which knows only the core library.
TRAIN = """\
import math
import time
import gangline

with gangline.core.init() as core:
    rate = gangline.get_cluster_info().trial.hparams["learning_rate"]
    for batch in range(1, 2001):
        loss = 2.3 * math.exp(-batch * rate / 4) + 0.15 + 0.02 * math.sin(batch)
        core.train.report_training_metrics(steps_completed=batch, metrics={"loss": loss})
        if batch % 50 == 0:
            core.train.report_validation_metrics(steps_completed=batch, metrics={"accuracy": 1 - loss / 2.5})
        if core.preempt.should_preempt():
            break
        time.sleep(0.02)
"""
CONFIG = """\
name: digits
description: a search over learning rates
labels: [nightly, vision]
entrypoint: python3 train.py
searcher: {name: random, metric: accuracy, smaller_is_better: false, max_trials: 6, max_length: {batches: 2000}}
hyperparameters: {learning_rate: {type: log, base: 10, minval: -3, maxval: -1}}
"""


def test_pictures(browser: Browser, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "config.yaml").write_text(CONFIG)
    number: int = cluster.read("experiment", "create", tmp_path / "config.yaml", tmp_path)["experiment"]["id"]
    until_sync(lambda: num_batches(cluster, number) >= 300, "300 batches of the first trial", 240)
    FOLDER.mkdir(exist_ok=True)
    with window(browser, viewport=SIZE, color_scheme="light") as page:
        page.goto(cluster.run("open", "--print").stdout.strip())
        expect(page.get_by_text("digits").first).to_be_visible()
        take(page, "home")
        page.goto(f"{cluster.http_url}/experiments")
        expect(page.get_by_role("row").filter(has_text="digits").first).to_contain_text("RUNNING")
        take(page, "experiments")
        page.goto(f"{cluster.http_url}/experiments/{number}")
        page.get_by_role("tab", name="Learning curves").click()
        expect(page.locator("canvas").first).to_be_visible()
        take(page, "experiment")
        page.goto(f"{cluster.http_url}/trials/{number}.1?tab=metrics")
        expect(page.locator("canvas").first).to_be_visible()
        take(page, "trial")
        page.goto(f"{cluster.http_url}/cluster")
        expect(page.get_by_label("agent-1/0: held")).to_be_visible()
        take(page, "cluster")
    cluster.run("experiment", "kill", str(number))


def num_batches(cluster: Cluster, number: int) -> int:
    """Returns how many batches the first trial has reported."""
    with cluster.connect() as client:
        trials = client.get_experiment(number).trials
    report = trials[0].training if trials else None
    return report.batches_completed if report is not None else 0


def take(page: Page, name: str) -> None:
    picture = page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")
    assert len(picture) <= MAX_BYTES
