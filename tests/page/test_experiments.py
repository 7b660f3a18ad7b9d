"""The list of experiments, one experiment and one trial, in a browser, with a real trial in progress."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import NARROW, find_faults
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


def test_the_list_is_filtered_and_its_view_is_in_the_address(page: Page, cluster: Cluster, experiment_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments?label=nightly")
    row = page.get_by_role("row").filter(has_text="seed-17")
    expect(row).to_contain_text("RUNNING")
    assert find_faults(page) == []
    page.set_viewport_size(NARROW)
    page.get_by_label("Name contains").fill("no such name")
    expect(page.get_by_text("No experiment matches these filters.")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Name contains")).to_have_value("no such name")
    page.get_by_label("Name contains").fill("")
    expect(row).to_be_visible()
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="Owner").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("columnheader", name="Owner")).to_have_count(0)
    page.reload()
    expect(row).to_be_visible()
    expect(page.get_by_role("columnheader", name="Owner")).to_have_count(0)


def test_an_action_on_a_selection_is_seen_by_the_command_line(page: Page, cluster: Cluster, experiment_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments")
    page.get_by_label(f"Select experiment {experiment_id}").check()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").filter(has_text="Pause: done for 1 experiment")).to_be_visible()

    def state() -> str:
        return str(cluster.read("experiment", "describe", str(experiment_id))["experiment"]["state"])

    until_sync(lambda: state() == "PAUSED", "the experiment being paused")
    expect(page.get_by_role("row").filter(has_text="seed-17")).to_contain_text("PAUSED")
    page.get_by_label(f"Select experiment {experiment_id}").check()
    page.get_by_role("button", name="Activate").click()
    until_sync(lambda: state() != "PAUSED", "the experiment going on")
    page.get_by_label(f"Select experiment {experiment_id}").check()
    page.get_by_role("button", name="Kill").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"gangline experiment kill {experiment_id}")
    assert find_faults(page) == []
    page.keyboard.press("Escape")
    assert state() != "TERMINAL"
