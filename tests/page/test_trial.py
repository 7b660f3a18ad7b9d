"""One trial in a browser: its metrics and its log while they come in, thousands of metrics and lines, and a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.page import studies
from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync


@pytest.fixture(scope="module")
def live_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    made = studies.start_live(cluster, tmp_path_factory.mktemp("live"))
    yield made
    cluster.run("experiment", "kill", str(made))


@pytest.fixture(scope="module")
def broken_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    return studies.run_broken(cluster, tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def restarted_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    return studies.run_restarted(cluster, tmp_path_factory.mktemp("restarted"))


def _last_batch(text: str) -> int:
    return int(re.findall(r"batch (\d+)", text)[-1])


def test_metrics_and_lines_appear_while_it_runs(page: Page, cluster: Cluster, live_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{live_id}.1?tab=logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text("batch 3 <b>bold</b>", timeout=60_000)
    shown = _last_batch(log.inner_text())
    expect(log).to_contain_text(f"batch {shown + 5} ")
    assert find_faults(page) == []

    page.get_by_role("tab", name="Metrics").click()
    figure = page.locator("figure").filter(has_text="Table of loss")
    expect(figure.locator("canvas")).to_be_visible()
    # Training and validation are in one chart.
    expect(figure.locator(".u-legend")).to_contain_text("training")
    expect(figure.locator(".u-legend")).to_contain_text("validation")
    figure.get_by_text("Table of loss").click()
    newest = figure.get_by_role("rowheader").last
    first = int(newest.inner_text())
    until_sync(lambda: int(newest.inner_text()) > first, "a later point of the chart")
    # A name is shown as it is written.
    expect(page.locator("figcaption").filter(has_text="<img src=x onerror=alert(1)>")).to_be_visible()
    assert find_faults(page) == []
    page.get_by_label("Axis").select_option("time")

    def has_table() -> bool:
        """A chart that was out of sight, as in the narrow window, is made anew, with its table closed."""
        figure.locator("details").evaluate("details => { details.open = true }")
        return figure.get_by_role("columnheader").count() > 0

    until_sync(has_table, "the table of the chart")
    expect(figure.get_by_role("columnheader").first).to_have_text("Time")


def test_a_chart_lacks_no_report_that_came_while_its_series_was_read(
    page: Page, cluster: Cluster, live_id: int
) -> None:
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/metrics/series?*", lambda route: held.append((route, route.fetch())))

    def newest(answer: APIResponse) -> int:
        return int(answer.json()["series"][0]["batches"][-1])

    def newest_now() -> int:
        query: dict[str, str | float | bool] = {"trialIds": f"{live_id}.1", "metrics": "loss", "maxDatapoints": 4}
        address = f"{cluster.http_url}/api/v1/metrics/series"
        return newest(page.request.get(address, params=query, headers={"X-Gangline-Page": "1"}))

    page.goto(f"{cluster.http_url}/trials/{live_id}.1?search=loss&group=training")
    until_sync(lambda: newest_now() > 0 and len(held) > 0, "the series being asked for")
    [(route, answer)] = held
    read = newest(answer)
    until_sync(lambda: newest_now() > read + 20, "twenty later reports")
    # They do not make the page ask again.
    assert len(held) == 1
    route.fulfill(response=answer)
    figure = page.locator("figure").filter(has_text="Table of loss")
    figure.get_by_text("Table of loss").click()
    heads = figure.get_by_role("rowheader")
    until_sync(lambda: int(heads.last.inner_text()) > read + 30, "the later reports in the chart")
    later = [batch for text in heads.all_inner_texts() if (batch := int(text)) > read]
    assert later == list(range(read + 1, read + 1 + len(later)))


def test_a_training_metric_is_a_column_of_the_list(page: Page, cluster: Cluster, live_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments?filter=id+%3D+{live_id}")
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Training metric").fill("loss")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("list", name="Shown").get_by_label("training.loss", exact=True)).to_be_checked()
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Close").click()
    grid = page.get_by_role("grid", name="Experiments")
    titles = grid.get_by_role("columnheader").all_inner_texts()
    value = grid.get_by_role("row").nth(1).get_by_role("gridcell").nth(titles.index("training.loss"))
    expect(value).to_have_text(re.compile(r"0\.\d+"))
    first = float(value.inner_text())
    until_sync(lambda: float(value.inner_text()) < first, "a later value of the metric")


def test_its_state_changes_by_itself(page: Page, cluster: Cluster, live_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments/{live_id}")
    page.get_by_role("button", name="Pause").click()

    def state() -> str:
        return str(cluster.read("experiment", "describe", str(live_id))["experiment"]["state"])

    until_sync(lambda: state() == "PAUSED", "the experiment being paused")
    expect(page.get_by_role("button", name="Activate")).to_be_visible()
    cluster.run("experiment", "activate", str(live_id))
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_of_thousands_of_metrics_the_visible_charts_are_made(page: Page, cluster: Cluster, broken_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{broken_id}.1")
    expect(page.get_by_text(f"{studies.NUM_METRICS} metrics")).to_be_visible()
    expect(page.locator("figure canvas").first).to_be_visible()
    assert page.locator("figure").count() <= 12
    page.get_by_role("button", name="Show more metrics").scroll_into_view_if_needed()
    expect(page.get_by_text("Table of group/metric 0023")).to_be_visible()
    expect(page.get_by_text("Table of group/metric 0000")).to_have_count(0)
    page.get_by_label("Metric contains").fill("metric 1999")
    expect(page.locator("figcaption")).to_have_text(["group/metric 1999"])
    assert find_faults(page) == []


def test_a_long_log_is_searched_and_read_backwards(page: Page, cluster: Cluster, broken_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{broken_id}.1?tab=logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text(f"line {studies.NUM_LINES - 1}")
    assert log.locator(".line").count() < 200
    # Older lines come as one scrolls up, until the first one is there.
    log.focus()

    def is_at_start() -> bool:
        page.keyboard.press("Home")
        return "from the first one on" in page.get_by_role("tabpanel").inner_text()

    until_sync(is_at_start, "the beginning of the log")
    page.keyboard.press("Home")
    expect(log.locator(".line").first).to_contain_text(re.compile(r"line 0$"))
    assert find_faults(page) == []
    page.get_by_label("Text").fill("line 1234")
    page.keyboard.press("Enter")
    page.get_by_label("follow").check()
    expect(log.locator(".line")).to_have_count(1)
    expect(log).to_contain_text("line 1234")
    page.get_by_label("Text").fill("")
    page.keyboard.press("Enter")
    page.get_by_label("Ranks").fill("5")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No line matches so far.")).to_be_visible()
    expect(page.get_by_label("Ranks")).to_have_value("5")
    page.get_by_label("Ranks").fill("")
    page.keyboard.press("Enter")
    # A time before the first line leads to it.
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    page.get_by_label("Jump to").fill(hour_ago.strftime("%Y-%m-%dT%H:%M:%S"))
    expect(page.get_by_label("follow")).not_to_be_checked()
    expect(log.locator(".line").first).to_contain_text(re.compile(r"line 0$"))


def test_a_failure_is_explained(page: Page, cluster: Cluster, broken_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{broken_id}.1?tab=overview")
    expect(page.get_by_text("Rank 0 failed first")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("RuntimeError: the <b>data</b> ran out")
    assert find_faults(page) == []
    page.get_by_role("link", name="Its log").click()
    expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")
    page.get_by_label("Text").fill("RuntimeError")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("RuntimeError: the <b>data</b> ran out")


def test_older_attempts_have_their_timeline_and_their_log(page: Page, cluster: Cluster, restarted_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{restarted_id}.1?tab=overview")
    rows = page.get_by_role("region", name="Ended attempts").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("orderly")
    expect(rows.nth(2)).to_contain_text(re.compile(r"ranks had started after \d+ s"))
    expect(rows.nth(2)).to_contain_text("RuntimeError: not at the first <b>try</b>")
    # The newest failure has the stack of the rank, also after an attempt that went well.
    expect(page.locator("pre")).to_contain_text("Traceback (most recent call last)")
    # The configuration names the strategy, and one slot has nothing to fuse.
    expect(page.get_by_role("region", name="Strategy")).to_contain_text("parallelism: auto")
    expect(page.get_by_role("region", name="Tensor fusion")).to_contain_text("gangline fusion list")
    assert find_faults(page) == []
    rows.nth(1).get_by_role("link", name="Log of attempt 2").click()
    log = page.get_by_role("log")
    expect(log).to_contain_text("words of the second attempt")
    expect(log.locator(".line").filter(has_text="words of the first attempt")).to_have_count(0)
    expect(page.get_by_label("follow")).not_to_be_checked()
    page.go_back()
    rows.nth(2).get_by_role("link", name="Log of attempt 1").click()
    expect(log).to_contain_text("words of the first attempt")


def test_curves_are_smoothed_and_the_load_is_beside_them(page: Page, cluster: Cluster, restarted_id: int) -> None:
    page.goto(f"{cluster.http_url}/trials/{restarted_id}.1")
    figure = page.locator("figure").filter(has_text="Table of loss")
    figure.get_by_text("Table of loss").click()
    expect(figure.get_by_role("columnheader")).to_have_text(["Batches", "training", "validation"])
    expect(figure.get_by_role("row").nth(2)).to_have_text(re.compile(r"2\s*0\.01\s*0\.5"))
    page.get_by_label("Smoothing").fill("0.5")
    expect(figure.get_by_role("row").nth(2)).to_have_text(re.compile(r"2\s*0\.34\s*0\.5"))
    page.get_by_label("logarithmic").check()
    expect(figure.locator("canvas")).to_be_visible()
    page.get_by_label("Group").select_option("profile and system")
    expect(page.locator("figcaption").filter(has_text="profiling/machine_cpu_percent")).to_be_visible()
    expect(page.locator("figcaption").filter(has_text="profiling/machine_sent_bytes")).to_be_visible()
    expect(page.locator("figcaption").filter(has_text="loss")).to_have_count(0)
    assert find_faults(page) == []
