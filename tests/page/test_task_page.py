"""A hostile page of a task, which has the origin of the gateway, in a browser that is signed in: what it cannot do.

The gateway is reached as this machine, where browsers keep windows apart, and by a name, where they do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support import stand_in_jupyter
from tests.support.cluster import Cluster, running_cluster

HOSTS = ("127.0.0.1", "gateway.example")
_HEADERS = "{ headers: { 'X-Gangline-Page': '1' } }"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose agent finds a program named jupyter."""
    programs = tmp_path_factory.mktemp("programs")
    script = programs / "jupyter"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in_jupyter.__file__}" "$@"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        with running_cluster(tmp_path_factory.mktemp("tasks"), agents=1, slots=1) as running:
            yield running


@pytest.fixture(scope="module")
def notebook(cluster: Cluster) -> str:
    """The address of a notebook that runs, with its token."""
    return cluster.run("notebook", "start", "--no-browser").stdout.strip()


@pytest.fixture(params=HOSTS)
def task_page(browser: Browser, cluster: Cluster, notebook: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of the task, in a browser that is signed in at the gateway and may use the task."""
    gateway = cluster.http_url.replace("127.0.0.1", request.param)
    context = browser.new_context()
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.goto(cluster.run("open", "--print", "--at", gateway).stdout.strip())
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    page.goto(notebook.replace("127.0.0.1", request.param))
    page.goto(page.url.partition("?")[0] + "page")
    expect(page.get_by_role("heading", name="Task")).to_be_visible()
    yield page
    context.close()


def test_cookie_of_the_session_reaches_no_task(task_page: Page) -> None:
    task_page.goto(task_page.url.replace("page", "echo"))
    text = task_page.inner_text("body")
    assert "gangline_session" not in text
    assert "GET /proxy/" in text
    assert task_page.evaluate("document.cookie") == ""


@pytest.mark.parametrize(
    "attempt",
    [
        f"fetch('/api/v1/me', {_HEADERS}).then((answer) => answer.status)",
        "fetch('/api/v1/me', { headers: { 'X-Gangline-Page': '1' }, mode: 'same-origin' }).then((a) => a.status)",
        """new Promise((done) => {
            const request = new XMLHttpRequest();
            request.onload = () => done(request.status);
            request.onerror = () => done('refused');
            request.open('GET', '/api/v1/me');
            request.setRequestHeader('X-Gangline-Page', '1');
            request.send();
        })""",
        """new Promise((done) => {
            const worker = new Worker('worker.js');
            worker.onmessage = (answer) => done(answer.data);
            worker.postMessage('/api/v1/me');
        })""",
        """new Promise((done) => {
            const text = "fetch('" + location.origin + "/api/v1/me', { headers: { 'X-Gangline-Page': '1' } })"
                + ".then((a) => postMessage(a.status), () => postMessage('refused'))";
            new Worker(URL.createObjectURL(new Blob([text]))).onmessage = (answer) => done(answer.data);
        })""",
        """new Promise((done) => {
            const frame = document.createElement('iframe');
            frame.srcdoc = '<p>inner</p>';
            frame.onload = () => done(frame.contentWindow.fetch('/api/v1/me',
                { headers: { 'X-Gangline-Page': '1' } }).then((answer) => answer.status));
            document.body.append(frame);
        })""",
    ],
)
def test_no_request_of_it_reaches_the_api(task_page: Page, attempt: str) -> None:
    assert task_page.evaluate(f"() => ({attempt}).catch(() => 'refused')") == "refused"


@pytest.mark.parametrize("tag", ["iframe", "object", "embed"])
@pytest.mark.parametrize("path", ["/", "/api/v1/me", "/assets/none.js"])
def test_no_frame_of_it_shows_the_gateway(task_page: Page, tag: str, path: str) -> None:
    shown = task_page.evaluate(
        """([tag, path]) => new Promise((done) => {
            const frame = document.createElement(tag);
            frame[tag === 'object' ? 'data' : 'src'] = path;
            const look = () => {
                const inner = (frame.contentDocument ?? frame.getSVGDocument?.())?.body?.innerText ?? '';
                done(inner);
            };
            frame.onload = look;
            frame.onerror = look;
            setTimeout(look, 3000);
            document.body.append(frame);
        })""",
        [tag, path],
    )
    assert shown == ""


@pytest.mark.parametrize("path", ["/", "/experiments", "/api/v1/nothing", "/assets/none.js"])
def test_no_window_that_it_opens_is_in_its_hands(task_page: Page, path: str) -> None:
    found = task_page.evaluate(
        """(path) => new Promise((done) => {
            const opened = window.open(path);
            if (opened === null) return done('refused');
            const until = Date.now() + 10000;
            const look = () => {
                if (opened.closed) return done('cut off');
                try {
                    if (opened.location.pathname === path && opened.document.readyState === 'complete')
                        return done('open: ' + opened.document.documentElement.outerHTML.slice(0, 80));
                } catch (error) {
                    return done('other origin');
                }
                if (Date.now() > until) return done('neither');
                setTimeout(look, 20);
            };
            look();
        })""",
        path,
    )
    # A window that is cut off is closed, or in another process, as far as this one can tell.
    assert found in (("cut off", "other origin") if "127.0.0.1" in task_page.url else ("refused",))


def test_a_window_of_it_loses_the_one_that_opened_it_when_that_goes_to_our_page(task_page: Page) -> None:
    with task_page.context.expect_page(timeout=5000) if "127.0.0.1" in task_page.url else _nothing() as opening:
        task_page.evaluate("() => { window.open('page') }")
    if opening is None:
        assert len(task_page.context.pages) == 1
        return
    second = opening.value
    expect(second.get_by_role("heading", name="Task")).to_be_visible()
    assert second.evaluate("window.opener !== null")
    task_page.goto(task_page.url.partition("/proxy/")[0] + "/experiments")
    expect(task_page.get_by_role("heading", name="Experiments")).to_be_visible()
    assert second.evaluate("window.opener === null || window.opener.closed")


def test_images_scripts_and_forms_of_it_have_no_effect(task_page: Page) -> None:
    with task_page.expect_response("**/api/v1/me") as answered:
        task_page.evaluate("() => { document.body.append(Object.assign(new Image(), { src: '/api/v1/me' })) }")
    assert (answered.value.status, answered.value.json()["code"]) == (403, "auth.page_header")
    requests: list[str] = []
    task_page.on("request", lambda asked: requests.append(asked.url))
    task_page.evaluate(
        """() => {
            const form = document.createElement('form');
            Object.assign(form, { method: 'POST', action: '/api/v1/experiments/1/kill' });
            document.body.append(form);
            form.submit();
        }"""
    )
    task_page.evaluate("() => navigator.sendBeacon('/api/v1/experiments/1/kill', 'x')")
    # A request that is allowed is made after those, so they would have been seen.
    task_page.evaluate("() => fetch('echo').then((answer) => answer.text())")
    assert [url for url in requests if "/api/" in url] == []


def test_a_session_that_it_adds_for_another_user_is_refused(task_page: Page) -> None:
    gateway = task_page.url.partition("/proxy/")[0]
    [own] = [each for each in task_page.context.cookies(f"{gateway}/api/v1/me") if each["path"] == "/api/"]
    added = f"{own['name']}=bG9naW46MTptYWxsb3J5OjA; path=/api/v1"
    task_page.evaluate("(cookie) => { document.cookie = cookie }", added)
    task_page.goto(gateway)
    expect(task_page.get_by_role("alert")).to_contain_text("two sessions")


class _nothing:  # noqa: N801 - it stands where a context of Playwright does
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
