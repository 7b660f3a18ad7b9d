"""The page without a mouse: Tab reaches each control and shows it; tabs, menus, tables and dialogs take keys."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.page import studies
from tests.support.cluster import Cluster

# Numbers the controls of the window that Tab has to reach. A grid is one stop, whose cells the arrow keys reach.
MARK_CONTROLS = """() => {
  const kinds = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
  const controls = [...document.querySelectorAll(kinds)].filter((each) =>
    each.checkVisibility({ checkVisibilityCSS: true }) && !each.matches(':disabled') && each.tabIndex >= 0
    && each.closest('[role=grid]') === null && each.closest('details:not([open]) > :not(summary)') === null);
  controls.forEach((each, index) => { each.dataset.stop = index });
  document.activeElement?.blur();
  return controls.map((each) => each.outerHTML.slice(0, 120));
}"""
# The number of the focused control, whether it shows that it has the focus, and whether a dialog has it.
READ_FOCUS = """() => {
  const focused = document.activeElement;
  const style = getComputedStyle(focused);
  return {
    stop: focused.dataset.stop ?? null, isBody: focused === document.body,
    isShown: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,
    isInDialog: focused.closest('dialog') !== null, text: focused.outerHTML.slice(0, 120),
  };
}"""


# Opens a dialog with the focused button, closes it with its own, and opens it again before the browser tells of that.
OPEN_TWICE = """async () => {
  const opener = document.activeElement;
  window.closings = 0;
  const opened = () => new Promise((found) => {
    const look = () => {
      const dialog = document.querySelector("dialog[open]");
      if (dialog) found(dialog); else setTimeout(look);
    };
    look();
  });
  opener.click();
  const dialog = await opened();
  dialog.addEventListener("close", () => setTimeout(() => window.closings++));
  [...dialog.querySelectorAll("button")].find((each) => each.textContent === "Back").click();
  await Promise.resolve().then(() => {}).then(() => {});
  opener.click();
}"""


@pytest.fixture(scope="module")
def search_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    return studies.run_search(cluster, tmp_path_factory.mktemp("keyboard"))


@pytest.mark.parametrize(
    "path",
    [
        "/experiments/{}",
        "/experiments/{}?tab=search",
        "/experiments?filter=id+%3D+{}",
        "/audit?action=experiment.create&object=experiment%2F{}",
    ],
)
def test_tab_reaches_every_control_and_shows_it(page: Page, cluster: Cluster, search_id: int, path: str) -> None:
    page.goto(cluster.http_url + path.format(search_id))
    expect(page.get_by_role("main").get_by_text("search").first).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
    controls: list[str] = page.evaluate(MARK_CONTROLS)
    assert len(controls) > 15
    reached: set[int] = set()
    hidden: list[str] = []
    # A few more than needed: grids have stops of their own.
    for _ in range(len(controls) + 20):
        page.keyboard.press("Tab")
        focus = page.evaluate(READ_FOCUS)
        if focus["isBody"]:
            break
        if focus["stop"] is not None:
            reached.add(int(focus["stop"]))
        if not focus["isShown"]:
            hidden.append(focus["text"])
    assert [control for number, control in enumerate(controls) if number not in reached] == []
    assert hidden == []


def test_tabs_menus_and_a_dialog_are_operated(page: Page, cluster: Cluster, search_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments/{search_id}")
    overview = page.get_by_role("tab", name="Overview")
    overview.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name=re.compile("^Trials"))).to_be_focused()
    expect(page.get_by_role("grid", name="Trials")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Notes")).to_have_attribute("aria-selected", "true")

    page.locator("details.user summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Sign out everywhere")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out everywhere")).to_be_hidden()

    edit = page.get_by_role("button", name="Edit", exact=True).first
    edit.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        focus = page.evaluate(READ_FOCUS)
        # Between the last control and the first one the browser itself has the focus.
        assert focus["isInDialog"] or focus["isBody"], focus
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(edit).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Back").focus()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(edit).to_be_focused()
    # Closed and opened again at once: what the browser tells later of the first one does not close the second one.
    page.evaluate(OPEN_TWICE)
    expect(dialog).to_be_visible()
    page.wait_for_function("window.closings > 0")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Description").focus()
    page.keyboard.type("typed without a mouse")
    dialog.get_by_role("button", name="Save").focus()
    page.keyboard.press("Space")
    expect(dialog).to_have_count(0)
    described = cluster.read("experiment", "describe", str(search_id))["experiment"]
    assert "typed without a mouse" in str(described)


def test_cells_of_the_list_are_reached_by_arrow_keys(page: Page, cluster: Cluster, search_id: int) -> None:
    page.goto(f"{cluster.http_url}/experiments?filter=id+%3D+{search_id}")
    select = page.get_by_label(f"Select experiment {search_id}", exact=True)
    select.focus()
    page.keyboard.press("Space")
    expect(page.get_by_text("1 experiment, 1 selected")).to_be_visible()
    page.keyboard.press("ArrowRight")
    link = page.get_by_role("grid", name="Experiments").get_by_role("link", name=str(search_id), exact=True)
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Experiment {search_id}")
