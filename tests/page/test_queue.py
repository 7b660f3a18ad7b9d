"""The queue in a browser: why jobs wait, and changes of their order whose effect is shown before they are made."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page import studies
from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync


@pytest.fixture
def numbers(cluster: Cluster) -> Iterator[list[int]]:
    """A command that holds all slots, and two that wait for them, in this order."""

    def start(name: str) -> int:
        arguments = ("cmd", "run", "--detach", "--slots", "2", "--name", name, "--", "sleep 600")
        return int(cluster.run(*arguments).stdout)

    first = start("holds all")
    until_sync(lambda: state_of(cluster, first) == "RUNNING", "the first command running")
    made = [first, start("<b>early</b>"), start("late")]
    yield made
    cluster.run("cmd", "kill", *map(str, made))


def state_of(cluster: Cluster, number: int) -> str:
    return str(cluster.read("experiment", "describe", str(number))["experiment"]["state"])


def waiting(cluster: Cluster) -> list[int]:
    """Those with a place: a paused one has none."""
    tasks = [task for task in cluster.read("job", "list") if int(task["queue_place"])]
    return [task["trial"]["experiment_id"] for task in sorted(tasks, key=lambda task: int(task["queue_place"]))]


@pytest.fixture(scope="module", autouse=True)
def paused_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A paused experiment, older than all that waits: it has no place in the queue."""
    made = studies.start_live(cluster, tmp_path_factory.mktemp("paused"), is_paused=True)
    yield made
    cluster.run("experiment", "kill", str(made))


def test_the_order_is_changed_after_its_effect_is_shown(page: Page, cluster: Cluster, numbers: list[int]) -> None:
    _, early, late = numbers
    page.goto(f"{cluster.http_url}/queue")
    rows = page.get_by_role("region", name="Jobs that wait").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("<b>early</b>")
    expect(rows.nth(2)).to_contain_text("late")
    # Why it waits, and what would start it.
    expect(rows.nth(1)).to_contain_text(re.compile("needs 2 slots|2 slots"))
    assert find_faults(page) == []

    # By keyboard alone.
    page.get_by_role("button", name=f"Move {late}.1 up").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"gangline job update {late} --ahead-of {early}")
    expect(dialog.get_by_role("row").filter(has_text=f"{late}.1")).to_contain_text("waits at place 1", timeout=60_000)
    assert find_faults(page) == []
    assert waiting(cluster) == [early, late]
    dialog.get_by_role("button", name="Do it").focus()
    page.keyboard.press("Enter")
    expect(rows.nth(1)).to_contain_text("late")
    assert waiting(cluster) == [late, early]

    # By dragging it back.
    rows.nth(2).get_by_role("rowheader").drag_to(rows.nth(1).get_by_role("rowheader"))
    expect(dialog).to_contain_text(f"gangline job update {early} --ahead-of {late}")
    dialog.get_by_role("button", name="Do it").click()
    expect(rows.nth(1)).to_contain_text("early")
    assert waiting(cluster) == [early, late]


def test_a_priority_is_changed_and_a_refusal_is_one_line(page: Page, cluster: Cluster, numbers: list[int]) -> None:
    late = numbers[2]
    page.goto(f"{cluster.http_url}/queue?pool=default")
    page.get_by_role("button", name=f"Change {late}.1").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value").fill("7")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Show the effect").click()
    expect(dialog).to_contain_text(f"gangline job update {late} --priority 7")
    expect(dialog.get_by_role("button", name="Do it")).to_be_visible(timeout=60_000)
    dialog.get_by_role("button", name="Do it").click()
    row = page.get_by_role("region", name="Jobs that wait").get_by_role("row").nth(1)
    expect(row).to_contain_text("late")
    expect(row.get_by_role("cell").nth(3)).to_have_text("7")
    assert waiting(cluster)[0] == late

    page.get_by_role("button", name=f"Change {late}.1").click()
    dialog.get_by_label("What").select_option("aheadOf")
    dialog.get_by_label("Value").fill("999999")
    dialog.get_by_role("button", name="Show the effect").click()
    expect(dialog.get_by_role("alert")).to_contain_text("999999")
    expect(dialog.get_by_role("button", name="Do it")).to_have_count(0)
