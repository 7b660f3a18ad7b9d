"""What a reader does to experiments in the list, and how work of the cluster shows in it and on the first view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

CONFIG = """\
name: {name}
entrypoint: python3 work.py
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
max_restarts: 0
labels: [{label}]
"""


def create(cluster: Cluster, folder: Path, name: str, label: str, *flags: str) -> int:
    """An experiment whose only trial fails at once."""
    (folder / "work.py").write_text("raise SystemExit('nothing to train')\n")
    (folder / "config.yaml").write_text(CONFIG.format(name=name, label=label))
    made = cluster.read("experiment", "create", *flags, folder / "config.yaml", folder)
    return int(made["experiment"]["id"])


def describe(cluster: Cluster, number: int) -> dict[str, Any]:
    described: dict[str, Any] = cluster.read("experiment", "describe", str(number))["experiment"]
    return described


def test_an_action_on_all_that_match_is_counted_and_its_results_are_listed(
    page: Page, cluster: Cluster, tmp_path: Path
) -> None:
    ids = [create(cluster, tmp_path, f"bulk-{number}", "bulk", "--paused") for number in range(3)]
    page.goto(f"{cluster.http_url}/experiments?filter=labels+%3D+bulk")
    expect(page.get_by_text("3 experiments", exact=True)).to_be_visible()
    actions = page.get_by_role("group", name="Actions on the selected experiments")
    expect(actions.get_by_role("button", name="Kill")).to_be_disabled()

    # All but one. Only ended ones can be archived, so each is refused by itself.
    page.get_by_role("button", name="Select all 3 that match").click()
    page.get_by_label(f"Select experiment {ids[2]}", exact=True).click()
    expect(page.get_by_text("3 experiments, 2 selected")).to_be_visible()
    actions.get_by_role("button", name="Archive", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 experiments match, 2 of them are yours")
    dialog.get_by_role("button", name="Archive").click()
    expect(dialog).to_contain_text("Done for 0 of 2, not for 2:")
    expect(dialog.get_by_role("listitem")).to_contain_text([f"{ids[0]}: ", f"{ids[1]}: "])
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Close").click()

    # A label, set on those by their ids. Then all end.
    for number in ids[:2]:
        page.get_by_label(f"Select experiment {number}", exact=True).check()
    actions.get_by_role("button", name="Label").click()
    dialog.get_by_label("Labels, separated by commas").fill("one, two words")
    dialog.get_by_role("button", name="Label").click()
    expect(page.get_by_role("status").filter(has_text="Label: done for 2 experiments")).to_be_visible()
    assert [sorted(describe(cluster, number)["labels"]) for number in ids] == [
        ["bulk", "one", "two words"], ["bulk", "one", "two words"], ["bulk"]
    ]  # fmt: skip
    page.get_by_label("Select all 3 that match").check()
    actions.get_by_role("button", name="Kill").click()
    expect(dialog).to_contain_text("what they trained since their last checkpoint is lost")
    dialog.get_by_role("button", name="Kill").click()
    expect(page.get_by_role("status").filter(has_text="Kill: done for 3 experiments")).to_be_visible()
    for number in ids:
        expect(page.get_by_role("row").filter(has_text=f"bulk-{ids.index(number)}")).to_contain_text("CANCELED")
        assert describe(cluster, number)["outcome"] == "CANCELED"


def test_work_shows_on_the_first_view_and_in_the_list_as_it_comes(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    page.evaluate("window.isSame = true")
    number = create(cluster, tmp_path, "to-fail", "live", "--paused")
    waiting = page.get_by_role("region", name="Waiting").first
    expect(waiting).to_contain_text("to-fail")
    expect(waiting).to_contain_text("PAUSED")
    cluster.run("experiment", "activate", str(number))
    failed = page.get_by_role("region", name="Failed lately")
    expect(failed).to_contain_text("to-fail", timeout=60_000)
    expect(waiting).not_to_contain_text("to-fail")
    assert page.evaluate("window.isSame")
    assert find_faults(page) == []

    failed.get_by_role("link", name="All that failed").click()
    row = page.get_by_role("row").filter(has_text="to-fail")
    expect(row).to_contain_text("FAILED")
    with cluster.connect() as client:
        client.edit_experiment(number, add_labels=["by-sdk"])
    expect(row).to_contain_text("by-sdk")
    cluster.run("experiment", "archive", str(number))
    expect(page.get_by_role("button", name="Update the list (1 changed)")).to_be_visible()
    page.get_by_role("button", name="Update the list (1 changed)").click()
    expect(row).to_have_count(0)


def test_workspaces_and_projects_hold_experiments(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    number = create(cluster, tmp_path, "to-move", "moved", "--paused")
    page.get_by_role("link", name="Workspaces").click()
    page.get_by_role("button", name="New workspace").click()
    page.get_by_label("Name", exact=True).fill("lab <b>1")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Rename lab <b>1").click()
    page.get_by_label("Name", exact=True).fill("lab")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="lab", exact=True).click()
    page.get_by_role("button", name="New project").click()
    page.get_by_label("Name", exact=True).fill("vision")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="vision")).to_be_visible()
    assert find_faults(page) == []
    assert [each["project"]["name"] for each in cluster.read("project", "list", "lab")] == ["vision"]
    # One that a command makes shows without a reload.
    cluster.run("project", "create", "lab", "speech")
    expect(page.get_by_role("link", name="speech")).to_be_visible()

    page.goto(f"{cluster.http_url}/experiments?filter=labels+%3D+moved")
    page.get_by_label(f"Select experiment {number}", exact=True).check()
    page.get_by_role("button", name="Move", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To the project").select_option("lab / vision")
    dialog.get_by_role("button", name="Move").click()
    expect(page.get_by_role("status").filter(has_text="Move: done for 1 experiment")).to_be_visible()
    page.get_by_role("link", name="Workspaces").click()
    page.get_by_role("link", name="lab", exact=True).click()
    page.get_by_role("link", name="vision").click()
    expect(page.get_by_role("heading", name="Project vision")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="to-move")).to_contain_text("PAUSED")
    assert find_faults(page) == []
    page.get_by_role("link", name="lab", exact=True).click()
    page.get_by_role("button", name="Archive vision").click()
    expect(page.get_by_role("link", name="vision")).to_have_count(0)
    page.get_by_label("archived too").check()
    expect(page.get_by_role("row").filter(has_text="vision")).to_contain_text("(archived)")

    def is_archived() -> bool:
        projects = [each["project"] for each in cluster.read("project", "list", "lab")]
        return any(each["archived"] for each in projects if each["name"] == "vision")

    until_sync(is_archived, "the project being archived")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/experiments?filter=owner+%3D+nobody", "A filter is written like owner = ann"),
        ("/projects/999999", "there is no project 999999"),
        ("/workspaces", "gangline workspace create NAME"),
    ],
)
def test_empty_and_missing_things_say_what_to_do(page: Page, cluster: Cluster, path: str, text: str) -> None:
    page.goto(cluster.http_url + path)
    expect(page.get_by_role("main")).to_contain_text(text)
    assert find_faults(page) == []
