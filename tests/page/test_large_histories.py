"""A trial with a long history in a browser: a series of 250,000 points, and a log of 1,000,000 lines that still grows.

benchmarks/page.py measures the same with 1,000,000 points, which take longer to write than a test may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.stored_history import FIRST_AT, gateway_database, store_lines, store_reports
from tests.page import studies
from tests.support.browser import find_faults, window
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

NUM_POINTS = 250_000
NUM_LINES = 1_000_000
# Among the last of the points that are drawn, which the table behind a chart shows.
SPIKE = 240_123
# Half of the range that is zoomed to.
NEAR = 40


@pytest.fixture(scope="module")
def trial_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A trial that begins to run, to report and to print once it has its history."""
    made = studies.start_live(cluster, tmp_path_factory.mktemp("large"), is_paused=True)
    with gateway_database(cluster.folder) as engine:
        store_reports(engine, f"{made}.1", "evaluation", NUM_POINTS, _report)
        store_lines(engine, f"{made}.1", NUM_LINES)
    cluster.run("experiment", "activate", str(made))
    yield f"{made}.1"
    cluster.run("experiment", "kill", str(made))


def _report(batch: int) -> dict[str, float]:
    return {"wave": 1000.0 if batch == SPIKE else batch * 7919 % 1009 / 1009}


def test_a_long_series_is_drawn_with_its_extremes_and_read_closer(page: Page, cluster: Cluster, trial_id: str) -> None:
    with page.expect_response("**/metrics/series?*") as answer:
        page.goto(f"{cluster.http_url}/trials/{trial_id}?search=wave")
    [series] = answer.value.json()["series"]
    assert series["numValues"] == NUM_POINTS
    assert len(series["values"]) <= 800
    figure = page.locator("figure").filter(has_text="Table of evaluation/wave")
    expect(figure.locator("canvas")).to_be_visible()
    figure.get_by_text("Table of evaluation/wave").click()
    heads = figure.get_by_role("rowheader")
    expect(figure.get_by_role("row").filter(has=page.get_by_role("rowheader", name=str(SPIKE)))).to_contain_text("1000")

    # Each point of the part, with its true value.
    page.get_by_label("From batch").fill(str(SPIKE - NEAR))
    page.keyboard.press("Tab")
    page.get_by_label("to batch").fill(str(SPIKE + NEAR))
    page.keyboard.press("Tab")
    expect(heads).to_have_text([str(batch) for batch in range(SPIKE - NEAR, SPIKE + NEAR + 1)])
    near = figure.get_by_role("row").filter(has=page.get_by_role("rowheader", name=str(SPIKE - 1), exact=True))
    shown = float(near.get_by_role("cell").inner_text())
    assert shown == pytest.approx(_report(SPIKE - 1)["wave"], rel=1e-3)

    # A drag with the Shift key to the right leads to earlier batches, in a range of the same width.
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 3 / 4, middle, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    first = re.compile(rf"^{SPIKE - 2 * NEAR}$|^{SPIKE - 2 * NEAR + 1}$|^{SPIKE - 2 * NEAR - 1}$")
    expect(heads.first).to_have_text(first)
    assert heads.count() == 2 * NEAR + 1
    # A drag that the Escape key cancels changes nothing, and neither does one that is no more than a press.
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 3 / 4, middle, steps=5)
    expect(figure.locator(".u-select")).not_to_have_css("width", "0px")
    page.keyboard.press("Escape")
    expect(figure.locator(".u-select")).to_have_css("width", "0px")
    page.mouse.up()
    page.mouse.click(box["x"] + box["width"] / 4, middle)
    expect(heads.first).to_have_text(first)
    # A drag that ends outside of the chart chooses what is inside of it.
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 500, middle + 400, steps=5)
    page.mouse.up()
    expect(heads.first).not_to_have_text(first)
    assert abs(heads.count() - NEAR) <= 2
    # A double click shows the whole again.
    figure.locator(".u-over").dblclick()
    expect(page.get_by_label("From batch")).to_have_value("")
    expect(heads.last).to_have_text(str(NUM_POINTS))
    assert find_faults(page) == []


def test_a_log_of_a_million_lines_is_followed_searched_and_read_at_any_time(
    browser: Browser, cluster: Cluster, trial_id: str
) -> None:
    with window(browser, timezone_id="UTC") as page:
        page.goto(cluster.run("open", "--print").stdout.strip())
        page.get_by_role("heading", name="Home").wait_for()
        page.goto(f"{cluster.http_url}/trials/{trial_id}?tab=logs")
        log = page.get_by_role("log")
        expect(log).to_contain_text("batch 5 ", timeout=60_000)
        assert log.locator(".line").count() < 200

        middle = NUM_LINES // 2
        at = datetime.fromtimestamp(FIRST_AT + middle, UTC)
        page.get_by_label("Jump to").fill(at.strftime("%Y-%m-%dT%H:%M:%S"))
        expect(log.locator(".line").first).to_contain_text(f"line {middle} of the training")
        expect(page.get_by_label("follow")).not_to_be_checked()
        assert log.locator(".line").count() < 200
        assert find_faults(page) == []

        # The only match is nearly a million lines before the end.
        page.get_by_label("Text").fill("line 4321 of")
        page.keyboard.press("Enter")
        expect(log.locator(".line")).to_have_count(1, timeout=60_000)
        expect(log.locator(".line")).to_contain_text("line 4321 of the training")

        page.get_by_label("Text").fill("")
        page.keyboard.press("Enter")
        page.get_by_label("follow").check()
        expect(log.locator(".line").last).to_contain_text("batch ")
        newest = re.findall(r"batch (\d+)", log.inner_text())[-1]
        until_sync(lambda: int(re.findall(r"batch (\d+)", log.inner_text())[-1]) > int(newest), "a later line")
