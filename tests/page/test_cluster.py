"""The cluster's slots, services and usage in a browser, by an administrator and by a user who is none."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

# A name that is dangerous as markup, and has letters that are written from right to left.
NAME = "<img src=x onerror=alert(1)> \u05e9\u05dc\u05d5\u05dd " + "y" * 100 + " end-of-it"


def test_a_slot_is_drained_and_the_command_line_sees_it(page: Page, cluster: Cluster) -> None:
    number = cluster.run("cmd", "run", "--detach", "--name", NAME, "--", "sleep 600").stdout.strip()
    page.goto(f"{cluster.http_url}/cluster")
    # Who holds it comes by itself.
    square = page.get_by_role("link", name=re.compile(rf"^agent-1.\d: held, trial {number}\.1 of admin: "))
    expect(square).to_be_visible(timeout=60_000)
    expect(square).to_have_attribute("href", f"/trials/{number}.1")
    page.get_by_text("Table of slots").click()
    table = page.get_by_role("region", name="Table of slots")
    row = table.get_by_role("row").filter(has_text=f"{number}.1")
    expect(row).to_contain_text("end-of-it")
    assert find_faults(page) == []

    slot_id = row.get_by_role("rowheader").inner_text()
    page.get_by_role("button", name=f"Drain {slot_id}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"gangline slot disable {slot_id} --drain")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Drain").click()
    expect(page.get_by_role("status").filter(has_text=f"Drain: done for {slot_id}")).to_be_visible()
    expect(row).to_contain_text("draining")

    def availability() -> str:
        with cluster.connect() as client:
            [view] = client.list_agents()
        return str({slot.id: slot.availability for slot in view.agent.slots}[slot_id])

    assert availability() == "DRAINING"
    page.get_by_role("button", name=f"Enable {slot_id}").click()
    page.get_by_role("dialog").get_by_role("button", name="Enable").click()
    until_sync(lambda: availability() == "ENABLED", "the slot being enabled")

    page.get_by_role("button", name="Disable agent-1", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("gangline agent disable agent-1")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    cluster.run("cmd", "kill", number)
    expect(page.get_by_role("img", name=re.compile("^agent-1.[01]: free"))).to_have_count(2, timeout=60_000)


def test_a_user_sees_the_map_and_may_change_nothing(user_page: Page, cluster: Cluster) -> None:
    user_page.goto(f"{cluster.http_url}/cluster")
    expect(user_page.get_by_label("agent-1/0: ")).to_be_visible()
    expect(user_page.get_by_text("Only administrators enable, drain and disable")).to_be_visible()
    user_page.get_by_text("Table of slots").click()
    expect(user_page.get_by_role("cell", name="for administrators").first).to_be_visible()
    expect(user_page.get_by_role("button", name=re.compile("Drain|Disable|Enable"))).to_have_count(0)


def test_services_pools_and_usage_are_shown(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("cmd", "run", "--name", "short", "--", "sleep 2")
    page.goto(f"{cluster.http_url}/cluster?tab=services")
    expect(page.get_by_text("1 of 1 member answer")).to_be_visible()
    expect(page.get_by_role("cell", name="scheduler (leads)")).to_be_visible()
    assert find_faults(page) == []
    page.get_by_role("tab", name="Pools").click()
    expect(page.get_by_role("row").filter(has_text="default")).to_contain_text("2")
    assert find_faults(page) == []

    page.get_by_role("tab", name="Usage").click()
    expect(page.locator("svg.bars rect").first).to_be_attached()
    page.get_by_text("Table of slot-hours").click()
    expect(page.get_by_role("columnheader", name="admin")).to_be_visible()
    assert find_faults(page) == []
    with page.expect_download() as started:
        page.get_by_role("link", name="All of it as CSV").click()
    started.value.save_as(tmp_path / "usage.csv")
    [row] = csv.DictReader((tmp_path / "usage.csv").read_text().splitlines())
    used = {entry["key"]: entry["cpu_slot_seconds"] for entry in cluster.read("usage", "--since", "1d")["entries"]}
    # The file has three digits, and other work may have added to the later answer.
    assert row["owner"] == "admin"
    assert 1 < float(row["slot_seconds"]) <= used["admin"] + 0.001
