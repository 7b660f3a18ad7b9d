"""Tasks in a browser: started with a template, opened through the gateway, read and ended; and another user's."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.browser import find_faults
from tests.support.cluster import Cluster
from tests.support.wait import until_sync

NAME = "\u05e9\u05dc\u05d5\u05dd <svg onload=alert(1)>" + "z" * 200


def newest(cluster: Cluster, group: str) -> dict[str, object]:
    tasks: list[dict[str, object]] = cluster.read(group, "list", "--all")
    return max(tasks, key=lambda task: int(str(task["id"])))


def test_a_command_is_started_with_a_template_and_its_log_is_read(page: Page, cluster: Cluster) -> None:
    with cluster.connect() as client:
        client.set_template("urgent", "resources: {priority: 3}")
    page.goto(f"{cluster.http_url}/tasks")
    page.get_by_role("button", name="Start a task").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Kind").select_option("COMMAND")
    dialog.get_by_label("Template").select_option("urgent")
    editor = dialog.get_by_label("Configuration, as YAML")
    editor.fill("entrypoint: [sh\n")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("line")
    editor.fill(f"name: {NAME!r}\nentrypoint: [sh, -c, 'echo from the page; sleep 600']\n")
    dialog.get_by_role("button", name="Start").click()
    expect(dialog).to_have_count(0)
    task = newest(cluster, "cmd")
    number = str(task["id"])
    assert (task["name"], task["template"]) == (NAME, "urgent")
    row = page.get_by_role("region", name="List of commands").get_by_role("row").filter(has_text="svg onload")
    expect(row).to_contain_text("RUNNING", timeout=60_000)
    assert cluster.read("job", "explain", number)["tasks"][0]["task"]["priority"] == 3

    page.get_by_role("link", name=f"Logs of {number}").click()
    expect(page.get_by_role("log")).to_contain_text("from the page", timeout=60_000)
    page.go_back()
    page.get_by_role("button", name=f"Kill {number}").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"gangline cmd kill {number}")
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    until_sync(lambda: newest(cluster, "cmd")["outcome"] == "CANCELED", "the command's end")
    expect(row).to_have_count(0)
    page.get_by_label("ended ones as well").check()
    expect(row).to_contain_text("CANCELED")
    assert find_faults(page) == []


def test_a_notebook_is_opened_through_the_gateway(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.http_url}/tasks")
    page.get_by_role("button", name="Start a task").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    number = str(newest(cluster, "notebook")["id"])
    page.get_by_role("button", name=f"Open {number}").click()
    link = page.get_by_role("link", name=f"Open notebook {number} in a new tab")
    expect(link).to_be_visible(timeout=60_000)
    assert find_faults(page) == []
    with page.context.expect_page() as opened:
        link.click()
    opened.value.wait_for_url(f"**/proxy/{number}/**")
    # The token of the address has moved into a cookie for this task alone.
    assert "token=" not in opened.value.url
    [cookie] = page.context.cookies(f"{cluster.http_url}/proxy/{number}/")
    assert cookie["path"] == f"/proxy/{number}/"
    opened.value.close()
    cluster.run("notebook", "kill", number)
    expect(page.get_by_role("alert")).to_contain_text("it has ended", timeout=60_000)


def test_another_users_shell_is_not_opened(user_page: Page, cluster: Cluster) -> None:
    number = cluster.run("shell", "start", "--detach").stdout.strip()
    user_page.goto(f"{cluster.http_url}/tasks")
    row = user_page.get_by_role("region", name="List of shells").get_by_role("row").filter(has_text=number)
    expect(row).to_contain_text("opened by its user alone")
    expect(user_page.get_by_role("button", name=f"Open {number}")).to_have_count(0)
    refused = user_page.request.get(
        f"{cluster.http_url}/api/v1/tasks/{number}/access",
        headers={"X-Gangline-Page": "1", "Sec-Fetch-Site": "same-origin"},
    )
    assert (refused.status, refused.json()["code"]) == (403, "auth.not_owner")
    # All users may end work, as on the command line.
    user_page.get_by_role("button", name=f"Kill {number}").click()
    user_page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    until_sync(lambda: newest(cluster, "shell")["outcome"] is not None, "the shell's end")
