"""Actions on an experiment of the list, in a browser, with a real trial in progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

# Reports a metric and prints a line for each batch; the code is user code, which knows only the core library.
TRAIN = """\
import time
import gangline

with gangline.core.init() as core:
    for batch in range(1, 100_000):
        core.train.report_training_metrics(steps_completed=batch, metrics={"loss": 1 / batch})
        if batch % 10 == 0:
            core.train.report_validation_metrics(steps_completed=batch, metrics={"accuracy": 1 - 1 / batch})
        print(f"batch {batch} <b>bold</b>", flush=True)
        if core.preempt.should_preempt():
            break
        time.sleep(0.1)
"""
NAME = "<script>alert(1)</script> " + "x" * 120 + " seed-17"
CONFIG = f"""\
name: {NAME!r}
entrypoint: python3 train.py
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: 100000}}}}
hyperparameters: {{learning_rate: 0.1}}
labels: [nightly]
"""


@pytest.fixture(scope="module")
def experiment_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An experiment with one trial that reports until it is ended."""
    folder: Path = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(TRAIN)
    (folder / "config.yaml").write_text(CONFIG)
    made: int = cluster.read("experiment", "create", folder / "config.yaml", folder)["experiment"]["id"]
    yield made
    cluster.run("experiment", "kill", str(made))


def test_an_action_asks_and_is_seen_by_the_command_line(page: Page, cluster: Cluster, experiment_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments?filter=labels+%3D+nightly")
    row = page.get_by_role("row").filter(has_text="seed-17")
    expect(row).to_contain_text("RUNNING", timeout=60_000)
    select = page.get_by_label(f"Select experiment {experiment_id}", exact=True)
    dialog = page.get_by_role("dialog")

    def act(title: str) -> None:
        select.check()
        page.get_by_role("button", name=title, exact=True).click()
        expect(dialog).to_contain_text(f"gangline experiment {title.lower()} {experiment_id}")

    def state() -> str:
        return str(cluster.read("experiment", "describe", str(experiment_id))["experiment"]["state"])

    act("Pause")
    dialog.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").filter(has_text="Pause: done for 1 experiment")).to_be_visible()
    until_sync(lambda: state() == "PAUSED", "the experiment being paused")
    expect(row).to_contain_text("PAUSED")
    act("Activate")
    dialog.get_by_role("button", name="Activate").click()
    until_sync(lambda: state() != "PAUSED", "the experiment going on")
    act("Kill")
    assert find_faults(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert state() != "TERMINAL"
