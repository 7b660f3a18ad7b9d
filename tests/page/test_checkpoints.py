"""Checkpoints and templates in a browser: found, fetched, changed and deleted, and by users of different rights."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

# User code, which knows only the core library.
TRAIN = """\
import gangline

with gangline.core.init() as core:
    for batches in (1, 2):
        with core.checkpoint.store_path({"steps_completed": batches}) as (path, _):
            (path / "weights <b>.txt").write_text(f"after {batches}")
"""
CONFIG = """\
name: <i>saves</i> checkpoints
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 2}}
checkpoint_storage: {save_trial_latest: 2}
"""


@pytest.fixture(scope="module")
def experiment_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    """An experiment that has ended with two checkpoints."""
    folder: Path = tmp_path_factory.mktemp("saves")
    (folder / "train.py").write_text(TRAIN)
    (folder / "config.yaml").write_text(CONFIG)
    made: int = cluster.read("experiment", "create", folder / "config.yaml", folder)["experiment"]["id"]
    with cluster.connect() as client:
        view = client.wait_experiment(made)
    assert view.experiment.outcome == "COMPLETED", view.experiment.reason
    return made


def listed(cluster: Cluster, experiment_id: int) -> list[str]:
    entries = cluster.read("checkpoint", "list", str(experiment_id))
    return [entry["id"] for entry in entries if entry["state"] != "DELETING"]


def test_a_checkpoint_is_fetched_and_deleted(page: Page, cluster: Cluster, experiment_id: int, tmp_path: Path) -> None:
    older, newer = listed(cluster, experiment_id)
    page.goto(f"{cluster.http_url}/checkpoints")
    page.get_by_label("Id, trial or experiment contains").fill("<I>SAVES")
    rows = page.get_by_role("region", name="Checkpoints").get_by_role("row")
    expect(rows).to_have_count(3)
    # The newest first.
    expect(rows.nth(1).get_by_role("rowheader")).to_contain_text(newer[-8:])
    assert find_faults(page) == []
    page.get_by_role("button", name=f"Files of {newer}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"gangline checkpoint download {newer}")
    assert find_faults(page) == []
    with page.expect_download() as started:
        dialog.get_by_role("link", name="weights <b>.txt").click()
    started.value.save_as(tmp_path / "weights")
    assert (tmp_path / "weights").read_text() == "after 2"
    dialog.get_by_role("button", name="Close").click()

    page.get_by_role("button", name=f"Delete {older}").click()
    expect(dialog).to_contain_text(f"gangline checkpoint rm {older}")
    dialog.get_by_role("button", name="Delete").click()
    until_sync(lambda: listed(cluster, experiment_id) == [newer], "the checkpoint's deletion")
    page.get_by_label("Id, trial or experiment contains").fill("no such checkpoint")
    expect(page.get_by_text("No checkpoint matches.")).to_be_visible()


def test_a_user_deletes_no_checkpoint_and_changes_no_template_of_others(
    user_page: Page, cluster: Cluster, experiment_id: int
) -> None:
    with cluster.connect() as client:
        client.set_template("of-admin", "resources: {priority: 9}")
    checkpoint_id = listed(cluster, experiment_id)[-1]
    user_page.goto(f"{cluster.http_url}/checkpoints")
    row = user_page.get_by_role("row").filter(has_text=checkpoint_id[-8:])
    expect(row).to_contain_text("deleted by its user alone")
    expect(user_page.get_by_role("button", name="Delete")).to_have_count(0)
    user_page.get_by_label("only mine").check()
    expect(user_page.get_by_text("No checkpoint matches.")).to_be_visible()
    user_page.goto(f"{cluster.http_url}/templates")
    expect(user_page.get_by_role("row").filter(has_text="of-admin")).to_contain_text("changed by its user alone")
    expect(user_page.get_by_role("button", name="Remove of-admin")).to_have_count(0)


def test_a_template_is_made_changed_and_removed(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.http_url}/templates")
    page.get_by_role("button", name="New template").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("night")
    dialog.get_by_label("Settings of an experiment, as YAML or JSON").fill("resources: {prioriti: 60}\n")
    dialog.get_by_role("button", name="Store").click()
    # The API's one line, which names the nearest key.
    expect(dialog.get_by_role("alert")).to_contain_text("priority")
    assert find_faults(page) == []
    dialog.get_by_label("Settings of an experiment, as YAML or JSON").fill("resources: {priority: 60}\n")
    dialog.get_by_role("button", name="Store").click()
    expect(page.get_by_role("status").filter(has_text="template night is stored")).to_be_visible()
    assert "priority: 60" in cluster.run("template", "describe", "night").stdout
    page.get_by_role("button", name="View night").click()
    expect(dialog).to_contain_text('"priority": 60')
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Remove night").click()
    expect(dialog).to_contain_text("gangline template remove night")
    dialog.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name="View night")).to_have_count(0)
    assert "night" not in [template["name"] for template in cluster.read("template", "list")]
