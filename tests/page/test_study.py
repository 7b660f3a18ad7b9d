"""One experiment in a browser: its trials, curves and plots, its code, notes, forks, and what one does with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page import studies
from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync


@pytest.fixture(scope="module")
def search_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    return studies.run_search(cluster, tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def halving_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    return studies.run_halving(cluster, tmp_path_factory.mktemp("halving"))


def _describe(cluster: Cluster, experiment_id: int) -> dict[str, object]:
    described: dict[str, object] = cluster.read("experiment", "describe", str(experiment_id))["experiment"]
    return described


def _open(page: Page, cluster: Cluster, experiment_id: int, tab: str) -> None:
    page.goto(f"{cluster.http_url}/experiments/{experiment_id}?tab={tab}")


def test_a_search_is_shown_by_its_trials_and_plots(page: Page, cluster: Cluster, search_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text("error 0.00033333 of trial")
    expect(panel).to_contain_text("3 of 3 trials have ended")
    assert find_faults(page) == []

    page.get_by_role("tab", name="Trials").click()
    rows = page.get_by_role("grid", name="Trials").get_by_role("row")
    page.get_by_label("Sort by").select_option("hp.rate")
    page.get_by_label("greatest first").check()
    expect(rows.nth(1)).to_contain_text(f"{search_id}.3")
    expect(rows.nth(3)).to_contain_text("0.001")
    assert find_faults(page) == []

    page.get_by_role("tab", name="Learning curves").click()
    expect(page.locator("figure canvas")).to_be_visible()
    # A table that nobody has opened is not made.
    expect(page.locator("figure td")).to_have_count(0)
    page.get_by_label("Trial contains").fill(".2")
    page.get_by_role("button", name="Only these 1").click()
    page.get_by_text("Table of error").click()
    expect(page.get_by_role("columnheader")).to_have_text(["Batches", f"{search_id}.2"])
    page.get_by_label("From batch").fill("2")
    page.keyboard.press("Tab")
    # The range is read again from the gateway, so the first batch is gone.
    expect(page.get_by_role("rowheader")).to_have_text(["2", "3"])
    assert find_faults(page) == []

    page.get_by_role("tab", name="Search", exact=True).click()
    expect(page.get_by_role("img", name=re.compile("Parallel coordinates: 3 trials"))).to_be_visible()
    expect(page.locator("polyline")).to_have_count(3)
    expect(page.locator("circle title")).to_have_count(3)
    assert find_faults(page) == []


def test_its_configuration_and_code_are_shown(page: Page, cluster: Cluster, search_id: int) -> None:
    _open(page, cluster, search_id, "config")
    expect(page.locator("pre")).to_contain_text("entrypoint: python3 train.py")
    assert find_faults(page) == []
    page.get_by_role("tab", name="Code").click()
    page.get_by_role("button", name="train.py").click()
    expect(page.get_by_role("region", name="train.py")).to_contain_text("core.checkpoint.store_path")
    page.get_by_text("lib/").click()
    page.get_by_role("button", name="model.py").click()
    expect(page.get_by_role("region", name="lib/model.py")).to_contain_text("DEPTH = 3")
    assert find_faults(page) == []


def test_notes_are_markdown_that_runs_nothing(page: Page, cluster: Cluster, search_id: int) -> None:
    notes = "a **good** one\n\n<img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](https://y.example)"
    _open(page, cluster, search_id, "notes")
    page.get_by_role("button", name="Edit", exact=True).last.click()
    page.get_by_role("textbox", name="Notes").fill(notes)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").filter(has_text="the notes are stored")).to_be_visible()
    assert _describe(cluster, search_id)["notes"] == notes
    shown = page.get_by_role("article")
    expect(shown.locator("strong")).to_have_text("good")
    expect(shown).to_contain_text("<img src=x onerror=alert(1)>")
    expect(shown.get_by_role("link")).to_have_text(["y"])
    assert find_faults(page) == []


def test_a_fork_is_checked_as_one_types_and_then_deleted(page: Page, cluster: Cluster, search_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    page.get_by_role("button", name="Fork").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_contain_text("The configuration is valid: 3 trials")
    assert find_faults(page) == []
    editor = dialog.get_by_role("textbox")
    text = editor.input_value()
    editor.fill(text.replace("metric: error", "metrik: error"))
    expect(dialog.get_by_role("status")).to_contain_text("metrik")
    expect(dialog.get_by_role("button", name="Create")).to_be_disabled()
    editor.fill(re.sub(r"name: search\b", "name: forked", text, count=1))
    expect(dialog.get_by_role("status")).to_contain_text("The configuration is valid")
    dialog.get_by_label("start nothing").check()
    dialog.get_by_role("button", name="Create").click()

    expect(page.get_by_role("heading", name="forked")).to_be_visible()
    fork_id = int(re.findall(r"experiments/(\d+)", page.url)[0])
    made = _describe(cluster, fork_id)
    assert (made["name"], made["forked_from"], made["state"]) == ("forked", search_id, "PAUSED")
    page.get_by_role("button", name="Kill").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"gangline experiment kill {fork_id}")
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    # Its state comes by the stream of changes.
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Experiments")).to_be_visible()

    def names() -> str:
        return json.dumps(cluster.read("experiment", "list"))

    until_sync(lambda: '"forked"' not in names(), "the fork being deleted")


def test_its_texts_are_edited_and_it_is_archived(page: Page, cluster: Cluster, search_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description").fill("how the rate matters")
    dialog.get_by_label("Labels").fill("second, first")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("how the rate matters")).to_be_visible()
    assert _describe(cluster, search_id)["labels"] == ["first", "second"]
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("button", name="Unarchive")).to_be_visible()
    assert _describe(cluster, search_id)["archived"] is True
    page.get_by_role("button", name="Unarchive").click()
    expect(page.get_by_role("button", name="Archive", exact=True)).to_be_visible()


def test_a_checkpoint_is_downloaded_and_deleted(page: Page, cluster: Cluster, search_id: int) -> None:
    trial_id = f"{search_id}.3"
    page.goto(f"{cluster.http_url}/trials/{trial_id}?tab=checkpoints")
    page.get_by_text(re.compile(r"^\d+ files, ")).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="weights of a model.txt").click()
    assert download.value.path().read_text() == "1 2 3"
    assert find_faults(page) == []
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()

    def states() -> list[str]:
        listed = cluster.read("experiment", "describe", str(search_id))
        assert listed
        with cluster.connect() as client:
            return [each.state.name for each in client.list_checkpoints(search_id) if each.trial_id == trial_id]

    until_sync(lambda: "COMPLETED" not in states(), "the checkpoint being deleted")


def test_trials_are_compared(page: Page, cluster: Cluster, search_id: int) -> None:
    _open(page, cluster, search_id, "trials")
    for number in (1, 3):
        page.get_by_label(f"Select trial {search_id}.{number}").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.get_by_role("heading", name="Compare 2 trials")).to_be_visible()
    expect(page.get_by_role("rowheader", name="hp.rate")).to_be_visible()
    expect(page.get_by_role("rowheader", name="hp.width")).to_have_count(0)
    assert find_faults(page) == []
    page.get_by_label("only differences").uncheck()
    expect(page.get_by_role("rowheader", name="hp.width")).to_be_visible()
    page.get_by_role("tab", name="Curves").click()
    expect(page.locator("figure canvas")).to_be_visible()
    expect(page.get_by_role("group", name="Curves").get_by_role("checkbox")).to_have_count(2)
    assert find_faults(page) == []
    # An experiment stands for its best trial.
    page.goto(f"{cluster.http_url}/compare?experiment={search_id}")
    expect(page.get_by_role("link", name=f"{search_id}.1")).to_be_visible()


def test_experiments_of_the_list_are_compared(page: Page, cluster: Cluster, search_id: int, halving_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments?filter=id+in+({search_id},{halving_id})")
    compare = page.get_by_role("button", name=re.compile("^Compare"))
    page.get_by_label(f"Select experiment {search_id}", exact=True).check()
    expect(compare).to_be_disabled()
    page.get_by_label("Select all 2 that match").check()
    compare.click()
    expect(page.get_by_role("heading", name="Compare 2 trials")).to_be_visible()
    # The newest comes first, as in the list.
    heads = page.get_by_role("columnheader")
    expect(heads.nth(1)).to_contain_text(f"{halving_id}.")
    expect(heads.nth(2)).to_contain_text(f"{search_id}.1")
    expect(page.get_by_role("rowheader", name="owner")).to_have_count(0)
    page.get_by_label("only differences").uncheck()
    expect(page.get_by_role("rowheader", name="owner")).to_be_visible()


def test_rungs_and_a_heat_map_are_shown(page: Page, cluster: Cluster, halving_id: int) -> None:
    _open(page, cluster, halving_id, "search")
    rungs = page.get_by_role("region", name="Rungs")
    expect(rungs.get_by_role("columnheader")).to_contain_text(
        ["Rung", "After batches", "Trials expected", "Trained so far"]
    )
    expect(rungs.get_by_role("row")).to_have_count(3)
    # All trials reach the first rung, after 2 batches.
    expect(rungs.get_by_role("row").nth(1).get_by_role("cell").nth(2)).to_have_text("2")
    expect(rungs.get_by_role("row").nth(1).get_by_role("cell").last).to_have_text("4")
    heat = page.get_by_role("img", name=re.compile("^Mean of error by rate and width: 4 trials in \\d bins"))
    expect(heat.locator("rect").first).to_be_visible()
    assert find_faults(page) == []


def test_one_is_canceled_and_continued(page: Page, cluster: Cluster, tmp_path: Path) -> None:
    made = studies.start_live(cluster, tmp_path)
    page.goto(f"{cluster.http_url}/experiments/{made}?tab=trials")
    expect(page.get_by_role("grid", name="Trials")).to_contain_text("RUNNING", timeout=60_000)
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its trials save a checkpoint and end.")
    dialog.get_by_role("button", name="Cancel").click()
    until_sync(lambda: _describe(cluster, made)["outcome"] == "CANCELED", "the experiment being canceled")
    # It comes by the stream of changes.
    page.get_by_role("button", name="Continue").click()
    expect(dialog.get_by_role("status")).to_contain_text("The configuration is valid")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Continue").click()
    until_sync(lambda: _describe(cluster, made)["outcome"] is None, "the experiment going on")
    page.get_by_role("button", name="Kill").click()
    dialog.get_by_role("button", name="Kill").click()
    until_sync(lambda: _describe(cluster, made)["outcome"] == "CANCELED", "the experiment being killed")


@pytest.mark.parametrize(
    ("view", "part"),
    [
        ("experiments/{}?tab=curves", "**/tables/trials?*"),
        ("experiments/{}?tab=search", "**/tables/trials/fields?*"),
        ("compare?experiment={}", "**/tables/experiments?*"),
        ("trials/{}.1", "**/metrics/names?*"),
    ],
    ids=["curves", "search", "compare", "metrics"],
)
def test_a_view_that_could_not_be_read_is_read_again(
    page: Page, cluster: Cluster, search_id: int, view: str, part: str
) -> None:
    problem = json.dumps({"code": "history.away", "detail": "the history is away"})
    page.route(part, lambda route: route.fulfill(status=503, body=problem, content_type="application/json"))
    page.goto(f"{cluster.http_url}/{view.format(search_id)}")
    alert = page.get_by_role("alert").filter(has_text="the history is away")
    expect(alert).to_be_visible()
    page.unroute(part)
    expect(alert).to_have_count(0)
    expect(page.locator("figure, table").first).to_be_visible()


def test_a_view_whose_code_did_not_come_is_loaded_again(page: Page, cluster: Cluster, search_id: int) -> None:
    """A machine that changes its network ends what the browser was loading."""
    # A part of the view's code. The browser remembers its failure until the window is loaded anew.
    page.route("**/assets/changes-*.js", lambda route: route.abort("failed"), times=1)
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    expect(page.get_by_role("button", name="Fork")).to_be_visible()


def test_a_view_whose_code_never_comes_says_what_to_do(page: Page, cluster: Cluster, search_id: int) -> None:
    tries = []
    page.on("requestfailed", lambda asked: tries.append(asked.url) if "/assets/changes-" in asked.url else None)
    page.route("**/assets/changes-*.js", lambda route: route.abort("failed"))
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    expect(page.get_by_role("alert")).to_contain_text("reload the window", timeout=60_000)
    # The window was loaded anew three times, and no more.
    assert 4 <= len(tries) <= 8
    page.unroute("**/assets/changes-*.js")
    page.reload()
    expect(page.get_by_role("button", name="Fork")).to_be_visible()


def test_a_part_of_a_view_whose_code_did_not_come_says_what_to_do(page: Page, cluster: Cluster, search_id: int) -> None:
    page.route("**/assets/js-yaml-*.js", lambda route: route.abort("failed"))
    page.goto(f"{cluster.http_url}/experiments/{search_id}?tab=config")
    expect(page.get_by_role("alert")).to_contain_text("reload the window")
    expect(page.get_by_role("button", name="Fork")).to_be_visible()
