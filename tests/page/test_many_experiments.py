"""The list of 10,000 experiments in a browser: pages, orders, filters, columns, saved views, deltas, and a gateway that
dies."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from tests.support.browser import NARROW, WIDE, find_faults, window
from tests.support.many_experiments import OWNERS, RARE, make_trial, renamed
from tests.support.many_page import ManyExperiments, many_experiments

NUM = 10_000
BEST = sorted(range(1, NUM + 1), key=lambda number: -(make_trial(number).best_validation or 0))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyExperiments]:
    with many_experiments(tmp_path_factory.mktemp("many"), NUM) as running:
        yield running


@pytest.fixture
def page(browser: Browser, many: ManyExperiments) -> Iterator[Page]:
    """A window in which alice sees the list."""
    with window(browser, viewport=WIDE) as page:
        many.open(page, "/experiments")
        expect(row_of(page, NUM)).to_be_visible()
        yield page


def row_of(page: Page, number: int) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_label(f"Select experiment {number}", exact=True))


def first_row(page: Page) -> Locator:
    return page.locator("[data-row='0']")


def test_rows_come_by_pages_as_the_reader_needs_them(browser: Browser, many: ManyExperiments) -> None:
    with window(browser, viewport=WIDE) as page:
        asked: list[str] = []

        def note(request: Request) -> None:
            if "/api/v1/tables/experiments?" in request.url or "/api/v1/stream" in request.url:
                asked.append(re.sub(r".*/api/v1/", "", request.url))

        page.on("request", note)
        with page.expect_request("**/api/v1/stream?*"):
            many.open(page, "/experiments")
        expect(row_of(page, NUM)).to_contain_text(f"digits-{NUM}")
        expect(page.get_by_text(f"{NUM} experiments", exact=True)).to_be_visible()
        grid = page.get_by_role("grid", name="Experiments")
        expect(grid).to_have_attribute("aria-rowcount", str(NUM + 1))
        assert page.get_by_role("row").count() < 100
        assert [text.split("?")[0] for text in asked] == ["tables/experiments", "stream"]

        # By keyboard to the last row, and to the second page. Nothing between them is read.
        page.get_by_label(f"Select experiment {NUM}", exact=True).focus()
        page.keyboard.press("Control+End")
        expect(row_of(page, 1)).to_contain_text("digits-1")
        page.keyboard.press("Control+Home")
        expect(page.get_by_label(f"Select experiment {NUM}", exact=True)).to_be_focused()
        for _ in range(8):
            page.keyboard.press("PageDown")
        expect(row_of(page, NUM - 120)).to_contain_text(f"digits-{NUM - 120}")
        page.keyboard.press("ArrowRight")
        expect(page.locator("[data-row='120'] a").first).to_be_focused()
        offsets = [match[1] for text in asked if (match := re.search(r"offset=(\d+)", text))]
        assert sorted(map(int, offsets)) == [0, 100, NUM - 100]
        assert len([text for text in asked if text.startswith("stream")]) == 1
        page.keyboard.press("Control+Home")
        assert find_faults(page) == []


def test_the_order_is_that_of_the_heads_that_were_clicked(page: Page) -> None:
    page.get_by_role("button", name="Best", exact=True).click()
    expect(first_row(page)).to_contain_text(f"digits-{BEST[-1]}")
    page.get_by_role("button", name="Best", exact=True).click()
    expect(first_row(page)).to_contain_text(f"digits-{BEST[0]}")
    expect(page.get_by_role("columnheader", name="Best")).to_have_attribute("aria-sort", "descending")
    # By owner, and the experiments of each owner by their best value; by keyboard.
    page.get_by_role("button", name="Owner", exact=True).click()
    page.get_by_role("button", name="Best", exact=True).focus()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    wanted = next(number for number in BEST if OWNERS[number % 3] == "alice")
    expect(first_row(page)).to_contain_text(f"digits-{wanted}")
    page.reload()
    expect(first_row(page)).to_contain_text(f"digits-{wanted}")


def test_the_text_of_a_filter_and_its_builder_are_two_views_of_one(page: Page) -> None:
    text = page.get_by_label("Filter", exact=True)
    text.fill(f"labels = {RARE} or hp.lr < 0.004")
    page.keyboard.press("Enter")
    expect(page.get_by_text("13 experiments", exact=True)).to_be_visible()
    page.get_by_role("button", name="Build").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Filter 2: field")).to_have_value("hp.lr")
    expect(dialog.get_by_label("Filter: how many of these hold")).to_have_value("or")
    dialog.get_by_label("Filter 2: comparison").select_option("<=")
    dialog.get_by_role("button", name="Add a group").click()
    dialog.get_by_label("Filter 3 1: field").fill("owner")
    dialog.get_by_label("Filter 3 1: comparison").select_option("in")
    dialog.get_by_label("Filter 3 1: values, separated by commas").fill('nobody, "x" y')
    expect(dialog.get_by_text(f'labels = {RARE} or hp.lr <= 0.004 or (owner in (nobody, "\\"x\\" y"))')).to_be_visible()
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("14 experiments", exact=True)).to_be_visible()
    expect(text).to_have_value(re.compile("hp.lr <= 0.004 or"))

    # A mistake is told in one line, and the rows stay.
    text.fill("nam = x")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("there is no field 'nam'")
    page.set_viewport_size(NARROW)
    text.fill("owner = nobody")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No experiment matches.")).to_be_visible()
    assert find_faults(page) == []
    text.fill("")
    page.keyboard.press("Enter")
    page.get_by_label("Search").fill("DIGITS-77")
    expect(page.get_by_text("111 experiments", exact=True)).to_be_visible()


def test_columns_are_those_of_a_saved_view_that_others_open_by_its_address(
    page: Page, browser: Browser, many: ManyExperiments
) -> None:
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Find a field, hyperparameter or metric").fill("optim")
    dialog.get_by_role("checkbox", name="hp.optimizer").check()
    dialog.get_by_role("list", name="Shown").get_by_role("checkbox", name="Labels").click()
    dialog.get_by_label("Width of Name in pixels").fill("200")
    dialog.get_by_label("Columns that stay at the left").select_option("2")
    for _ in range(6):
        dialog.get_by_role("button", name="Move hp.optimizer left").click()
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Close").click()
    heads = ["ID", "Name", "hp.optimizer", "State", "Owner", "Started", "Duration", "Progress", "Best"]
    expect(page.get_by_role("columnheader")).to_have_text(["", *heads])
    expect(row_of(page, NUM - 1)).to_contain_text("adam")
    page.get_by_label("Filter", exact=True).fill("hp.optimizer = sgd")
    page.keyboard.press("Enter")
    expect(page.get_by_text("5000 experiments", exact=True)).to_be_visible()
    page.get_by_role("button", name="Save view as").click()
    page.get_by_label("Name", exact=True).fill("<b>by</b> optimizer")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="is saved")).to_be_visible()
    view = page.get_by_role("combobox", name="View", exact=True)
    shared = page.url
    view_id = re.findall(r"[?&]view=([^&]+)", shared)[0]

    # An edge that is drawn is a change of the view.
    edge = page.get_by_role("columnheader", name="Owner").locator(".edge").bounding_box()
    assert edge is not None
    page.mouse.move(edge["x"] + 3, edge["y"] + 5)
    page.mouse.down()
    page.mouse.move(edge["x"] + 63, edge["y"] + 5)
    page.mouse.up()
    expect(view.locator("option:checked")).to_have_text("<b>by</b> optimizer (changed)")
    page.get_by_role("button", name="Save view", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="as it is shown")).to_be_visible()

    with window(browser, viewport=WIDE) as other:
        many.open(other, f"/experiments?view={view_id}", "bob")
        expect(other.get_by_text("5000 experiments", exact=True)).to_be_visible()
        expect(other.get_by_role("columnheader")).to_have_text(["", *heads])
        owner = other.get_by_role("columnheader", name="Owner").bounding_box()
        assert owner is not None
        assert round(owner["width"]) == 200
        other.goto(shared)
        expect(other.get_by_role("columnheader")).to_have_text(["", *heads])
    page.get_by_role("button", name="Delete view").click()
    expect(view.locator("option")).to_have_text(["none"])


HOSTILE = {
    NUM: "<img src=x onerror=alert(1)>" + "&amp;<b>",
    NUM - 1: "\u202eevil \u2066mixed \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    NUM - 2: "control \x00\x07\x1b[31m\nnew line\ttab",
    NUM - 3: "x" * 4990 + " the end",
}


def test_a_change_on_the_server_is_on_the_screen_whatever_the_name(page: Page, many: ManyExperiments) -> None:
    page.evaluate("window.isSame = true")
    many.put(*(renamed(number, name) for number, name in HOSTILE.items()))
    expect(row_of(page, NUM)).to_contain_text(HOSTILE[NUM])
    expect(row_of(page, NUM - 1)).to_contain_text(HOSTILE[NUM - 1])
    expect(row_of(page, NUM - 3)).to_contain_text("the end")
    expect(row_of(page, NUM - 2)).to_contain_text("control")
    assert page.evaluate("window.isSame")
    # The end of the long name is visible, within its cell.
    tail = page.get_by_text("the end", exact=False).last.bounding_box()
    cell = page.get_by_role("columnheader", name="Name").bounding_box()
    assert tail is not None
    assert cell is not None
    assert cell["x"] <= tail["x"] < tail["x"] + tail["width"] <= cell["x"] + cell["width"] + 1
    assert find_faults(page) == []
    # A new one is at the top; the others keep their order.
    many.put(renamed(NUM + 1, "newest"))
    expect(first_row(page)).to_contain_text("newest")
    expect(page.locator("[data-row='1']")).to_contain_text(HOSTILE[NUM])
    expect(page.get_by_text(f"{NUM + 1} experiments", exact=True)).to_be_visible()


def test_a_gateway_that_dies_is_missed_and_found_again(page: Page, many: ManyExperiments) -> None:
    page.evaluate("window.isSame = true")
    lost = page.get_by_role("alert").filter(has_text="The connection to the gateway is lost")
    expect(lost).to_have_count(0)
    many.kill_gateway()
    expect(lost).to_be_visible()
    assert find_faults(page) == []
    page.set_viewport_size(WIDE)
    many.put(renamed(NUM - 5, "while it was away"))
    many.start_gateway()
    expect(row_of(page, NUM - 5)).to_contain_text("while it was away")
    expect(lost).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="the connection to the gateway is back")).to_be_visible()
    many.put(renamed(NUM - 6, "afterwards"))
    expect(row_of(page, NUM - 6)).to_contain_text("afterwards")
    assert page.evaluate("window.isSame")
