"""Commands, notebooks and shells on a real cluster, through our commands and the published client of Determined.

A stand-in takes the place of Jupyter. Tests of commands come first, because a notebook then keeps one of the two slots.
"""

from __future__ import annotations

import base64
import csv
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.launch.shell import find_sshd
from gangline.login import HOME_VARIABLE
from tests.support import stand_in_jupyter
from tests.support.cluster import COMMAND, Cluster, running_cluster
from tests.support.determined_client import DeterminedClient, determined_client
from tests.support.wait import until

UPGRADE = "GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose agent finds a program named jupyter."""
    programs = tmp_path_factory.mktemp("programs")
    script = programs / "jupyter"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stand_in_jupyter.__file__}" "$@"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        with running_cluster(tmp_path_factory.mktemp("tasks"), agents=1, slots=2) as running:
            yield running


@pytest.fixture(scope="module")
def det(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeterminedClient]:
    with determined_client(cluster, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "data.txt").write_text("of the context\n")
    return folder


def _start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, *words], env={**os.environ, HOME_VARIABLE: str(cluster.home)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_a_command_prints_and_exits_as_it_would_here(cluster: Cluster, context: Path) -> None:
    script = 'cat data.txt; echo "to $WHOM, a $DET_TASK_TYPE" >&2; exit 7'
    done = cluster.run("cmd", "run", "-c", context, "--env", "WHOM=stderr", "--", script, check=False)
    assert (done.returncode, done.stdout) == (7, "of the context\n")
    assert "to stderr, a COMMAND\n" in done.stderr
    assert re.search(r"^error: command \d+: trial \d+\.1 failed: ", done.stderr, re.MULTILINE)
    done = cluster.run("cmd", "run", "--slots", "2", "--", "echo", "one  word")
    assert done.stdout == "one  word\n"
    assert cluster.run("cmd", "run", "--", "kill -9 $$", check=False).returncode == 128 + signal.SIGKILL


def test_a_command_is_kept_apart_from_trainings_and_has_one_attempt(cluster: Cluster) -> None:
    number = int(cluster.run("cmd", "run", "--detach", "--name", "fails", "--", "exit 3").stdout)
    cluster.run("experiment", "wait", str(number), check=False)
    [task] = [entry for entry in cluster.read("cmd", "list", "--all") if entry["id"] == number]
    assert (task["name"], task["outcome"], task["task_kind"]) == ("fails", "FAILED", "COMMAND")
    assert number not in [entry["id"] for entry in cluster.read("experiment", "list", "--all")]
    assert number not in [entry["id"] for entry in cluster.read("cmd", "list")]
    assert cluster.read("cmd", "describe", str(number))["trials"][0]["trial"]["attempts"] == 1


async def test_interrupted_it_goes_on_until_it_is_killed(cluster: Cluster) -> None:
    running = _start(cluster, "cmd", "run", "--", "echo begun; exec sleep 600")
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    [number] = re.findall(r"command (\d+) goes on; read on with: gangline cmd logs -f", errors)
    refused = cluster.run("experiment", "pause", number, check=False)
    assert "cannot be paused; end it with kill" in refused.stderr
    [job] = cluster.read("job", "list")
    assert (job["trial"]["experiment_id"], job["task_kind"]) == (int(number), "COMMAND")
    cluster.run("cmd", "kill", number)
    await until(lambda: cluster.read("cmd", "describe", number)["experiment"]["outcome"] == "CANCELED", "its end", 60)
    assert "begun" in cluster.run("cmd", "logs", number).stdout
    refused = cluster.run("cmd", "kill", "999999", check=False)
    assert refused.returncode == 2


def test_waiting_for_slots_is_that_of_experiments(cluster: Cluster) -> None:
    refused = cluster.run("cmd", "run", "--slots", "3", "--", "true", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "3 can never fit" in refused.stderr
    held = cluster.run("cmd", "run", "-d", "--slots", "2", "--", "sleep", "600").stdout.strip()
    waits = cluster.run("cmd", "run", "-d", "--priority", "5", "--", "true").stdout.strip()
    assert "needs 1 slot" in cluster.run("job", "explain", waits).stdout
    cluster.run("cmd", "kill", held)
    cluster.run("experiment", "wait", waits)


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.strip())))


async def test_commands_of_determined(det: DeterminedClient, context: Path) -> None:
    said = det.works("cmd", "run", "-c", str(context), "--", "cat", "data.txt")
    assert "of the context" in said
    [task_id] = re.findall(r"det task logs -f (\S+)", said.text)
    assert "of the context" in det.works("task", "logs", task_id)
    assert "of the context" in det.works("cmd", "logs", task_id)
    running = det.works("cmd", "run", "--detach", "--config", "description=sleeps", "sleep", "600").text.strip()
    rows = {row["id"]: row for row in _rows(det.works("cmd", "list", "--csv").text)}
    assert (rows[task_id]["state"], rows[task_id]["exitStatus"]) == ("TERMINATED", "success")
    assert (rows[running]["description"], rows[running]["username"]) == ("sleeps", "admin")
    [described] = _rows(det.works("cmd", "describe", running, "--csv").text)
    assert described["id"] == running
    assert "max_restarts: 0" in det.works("cmd", "config", running)
    det.works("cmd", "set", "priority", running, "9")
    [job] = _rows(det.works("job", "list", "--csv").text)
    assert job["Priority"] == "9"
    [task] = _rows(det.works("task", "list", "--csv").text)
    assert task["Name"].startswith("Command ")
    det.works("cmd", "kill", running)

    def state() -> str:
        return next(row["state"] for row in _rows(det.works("cmd", "list", "--csv").text) if row["id"] == running)

    await until(lambda: state() == "TERMINATED", "the end", 60)
    assert "there is no experiment 999" in det.run("cmd", "describe", "999.00000000-0000-0000-0000-000000000000")


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> str:
    """The address of a notebook that runs, with its token."""
    return cluster.run("notebook", "start", "--no-browser", "--name", "look").stdout.strip()


@pytest.fixture(scope="module")
def browser(cluster: Cluster, address: str) -> Browser:
    return Browser(cluster, address)


class Browser:
    """Makes requests as a browser that has opened the address."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.host = address.removeprefix("http://").partition("/")[0]
        path = address.removeprefix(f"http://{self.host}")
        self.base = path.partition("?")[0]
        self.cookie = ""
        opened = self.get(path)
        assert opened.status == 303
        assert opened.headers["location"] == self.base
        self.cookie = opened.headers["set-cookie"].partition(";")[0]
        assert re.search(rf"; Path={self.base}; Max-Age=\d+; HttpOnly; SameSite=Lax$", opened.headers["set-cookie"])

    def get(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, body, {"Cookie": self.cookie, **headers} if self.cookie else headers)
        return connection.getresponse()

    def read(self, name: str) -> str:
        return self.get(self.base + name).read().decode()

    def upgrade(self, more: str = "") -> socket.socket:
        name, port = self.host.split(":")
        connection = socket.create_connection((name, int(port)), timeout=60)
        connection.sendall(UPGRADE.format(path=f"{self.base}ws", host=self.host, more=more).encode())
        return connection


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        data = connection.recv(1 << 16)
        assert data, f"the connection ended after {len(received)} bytes"
        received += data
    return received


def test_requests_reach_the_task_without_what_authenticates_the_user(browser: Browser, cluster: Cluster) -> None:
    body = os.urandom(1 << 20).hex().encode()
    answer = browser.get(f"{browser.base}echo?a=1", "POST", body, Authorization=f"Bearer {cluster.login.token}")
    text = answer.read()
    head, _, echoed = text.partition(b"\r\n\r\n")
    assert (answer.status, echoed) == (200, body)
    assert head.startswith(f"POST {browser.base}echo?a=1 HTTP/1.1".encode())
    assert b"uthorization" not in head
    assert b"gangline_proxy" not in head


def test_answers_act_on_the_path_of_the_task_alone(browser: Browser) -> None:
    answer = browser.get(f"{browser.base}cookie")
    answer.read()
    assert answer.headers.get_all("set-cookie") == [f"a=1; Path={browser.base}"]
    assert answer.headers["service-worker-allowed"] is None
    assert answer.headers["x-accel-redirect"] is None
    assert f"connect-src http://{browser.host}{browser.base} " in answer.headers["content-security-policy"]


def test_who_may_not_reach_it_is_told_so(browser: Browser, cluster: Cluster) -> None:
    cookie, browser.cookie = browser.cookie, ""
    try:
        assert browser.get(f"{browser.base}echo").status == 401
        assert browser.get(f"{browser.base}echo", Cookie=cookie[:-1] + "x").status == 401
        assert browser.get("/proxy/999/echo", Cookie=cookie).status == 401
        assert browser.get("/api/v1/me", Cookie=cookie).status == 401
    finally:
        browser.cookie = cookie
    assert browser.get(f"{browser.base}echo", "POST", b"", Origin="http://elsewhere.example").status == 403
    with browser.upgrade(f"Cookie: {cookie}\r\nOrigin: http://elsewhere.example\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")
    with browser.upgrade() as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    command = cluster.run("cmd", "run", "--detach", "--", "true").stdout.strip()
    refused = browser.get(f"/proxy/{command}/", Authorization=f"Bearer {cluster.login.token}")
    assert (refused.status, b"only shells and notebooks" in refused.read()) == (404, True)


def test_pages_of_tasks_do_not_use_the_basic_credentials_of_a_browser(cluster: Cluster, browser: Browser) -> None:
    basic = "Basic " + base64.b64encode(f":{cluster.login.token}".encode()).decode()
    assert browser.get("/api/v1/experiments", Authorization=basic).status == 200
    connection = http.client.HTTPConnection(browser.host, timeout=60)
    connection.request("GET", "/api/v1/experiments", None, {"Authorization": basic, "Sec-Fetch-Site": "same-origin"})
    assert connection.getresponse().status == 401


def test_a_websocket_carries_bytes_both_ways(browser: Browser) -> None:
    content = os.urandom(3 << 20)
    with browser.upgrade(f"Cookie: {browser.cookie}\r\n") as connection:
        head = _receive(connection, len(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"))
        assert head.startswith(b"HTTP/1.1 101 ")
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        for start in range(0, len(content), 1 << 16):
            piece = content[start : start + (1 << 16)]
            connection.sendall(piece)
            assert _receive(connection, len(piece)) == piece


async def test_a_slow_reader_holds_up_itself_alone(browser: Browser) -> None:
    slow = browser.get(f"{browser.base}endless")
    sent = [-1, -2]

    def has_stopped() -> bool:
        sent.append(int(browser.read("sent")))
        return sent[-1] == sent[-2] > 0

    await until(has_stopped, "the task to wait for its reader", 60)
    assert sent[-1] < 64 << 20
    assert slow.read(1 << 20) == b"x" * (1 << 20)
    slow.close()


def test_an_answer_that_breaks_off_is_cut_off(browser: Browser) -> None:
    with pytest.raises(http.client.IncompleteRead):
        browser.get(f"{browser.base}half").read()
    assert browser.read("echo")


async def test_a_gateway_that_was_killed_serves_the_task_again(browser: Browser, cluster: Cluster) -> None:
    before = cluster.service("gateway").pid
    os.kill(before, signal.SIGKILL)

    def answers() -> bool:
        try:
            return "GET" in browser.read("echo")
        except (OSError, http.client.HTTPException):
            return False

    await until(lambda: cluster.service("gateway").pid != before and answers(), "the notebook to answer again", 90)


def _open_in_browser(url: str) -> str:
    """Follows an address as a browser does that knows nothing yet."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(url) as page:
        return str(page.read().decode())


def test_notebooks_of_determined(det: DeterminedClient) -> None:
    said = det.works("notebook", "start", "--no-browser", "--config", "description=of det")
    assert "is ready" in said
    [url] = re.findall(r"running at: \S*?(http://[^\x1b\s]+)", said.text)
    assert "GET /proxy/" in _open_in_browser(url)
    listed = json.loads(det.works("notebook", "list", "--json").text)
    [notebook] = [entry for entry in listed if entry["description"] == "of det"]
    assert notebook["state"] == "RUNNING"
    assert "stand-in serves" in det.works("notebook", "logs", notebook["id"])
    det.works("notebook", "kill", notebook["id"])


async def test_a_task_that_dies_answers_with_one_line(browser: Browser, cluster: Cluster) -> None:
    answer = browser.get(f"{browser.base}die")
    assert answer.status == 502
    assert "gave no whole answer" in json.loads(answer.read())["detail"]
    number = browser.base.split("/")[2]
    await until(lambda: "has ended" in browser.read("echo"), "the end of the notebook", 60)
    assert browser.get(f"{browser.base}echo").status == 502
    failed = cluster.run("notebook", "open", "--no-browser", number, check=False)
    assert (failed.returncode, "has ended" in failed.stderr) == (1, True)


def test_an_environment_without_jupyter_is_told_what_to_install(cluster: Cluster) -> None:
    done = cluster.run("notebook", "start", "--no-browser", "--env", "PATH=/nowhere", check=False)
    assert done.returncode == 1
    assert "this environment has no jupyter; install it where environment.python points" in done.stderr


def test_a_notebook_that_another_user_could_open_does_not_start(cluster: Cluster) -> None:
    cluster.run("user", "create", "eve", "--no-password")
    try:
        done = cluster.run("notebook", "start", "--no-browser", check=False)
    finally:
        cluster.run("user", "deactivate", "eve")
    assert done.returncode == 1
    assert "could be opened by the trials of other users, because they run as the same account" in done.stderr
    assert "rank_uids" in done.stderr


needs_sshd = pytest.mark.skipif(
    not find_sshd(shutil.which) or shutil.which("ssh") is None, reason="OpenSSH's server or client is not installed"
)


@needs_sshd
async def test_a_shell_is_opened_again_and_again_until_it_is_killed(cluster: Cluster, context: Path) -> None:
    script = 'cat data.txt; echo "$WHOM $DET_TASK_TYPE"; exit 5'
    done = cluster.run("shell", "start", "-c", context, "--env", "WHOM=me", "--", script, check=False)
    assert (done.returncode, done.stdout) == (5, "of the context\nme SHELL\n")
    [number] = re.findall(r"shell (\d+) goes on", done.stderr)
    content = os.urandom(1 << 20).hex()
    opened = _start(cluster, "shell", "open", number, "--", "cat")
    assert opened.communicate(content, timeout=60)[0] == content
    host = cluster.http_url.removeprefix("http://")
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), timeout=60) as stranger:
        stranger.sendall(UPGRADE.format(path=f"/proxy/{number}/", host=host, more="").encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 401 ")
    cluster.run("shell", "kill", number)
    await until(lambda: cluster.read("shell", "describe", number)["experiment"]["outcome"] == "CANCELED", "the end", 60)
    failed = cluster.run("shell", "open", number, check=False)
    assert (failed.returncode, "has ended: killed by admin" in failed.stderr) == (1, True)


@needs_sshd
def test_shells_of_determined(det: DeterminedClient, context: Path) -> None:
    shell_id = det.works("shell", "start", "--detach", "-c", str(context)).text.split()[-1]
    said = det.works("shell", "open", shell_id, "cat data.txt; echo of $DET_TASK_TYPE")
    assert "of the context" in said
    assert "of SHELL" in said
    assert shell_id in det.works("shell", "show-ssh-command", shell_id)
    [row] = [row for row in _rows(det.works("shell", "list", "--csv").text) if row["id"] == shell_id]
    assert row["state"] == "RUNNING"
    assert "the shell is ready" in det.works("shell", "logs", shell_id)
    det.works("shell", "kill", shell_id)


@needs_sshd
def test_a_shell_has_no_password_and_no_other_key(det: DeterminedClient, cluster: Cluster, tmp_path: Path) -> None:
    """The tunnel of Determined's client carries no token. So the shell's own key is what lets a user in."""
    shell_id = det.works("shell", "start", "--detach").text.strip()
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    command = det.works("shell", "show-ssh-command", shell_id).text
    [line] = [line for line in command.splitlines() if "ssh -o" in line]
    wrong = re.sub(r"-i \S+", f"-i {other} -o BatchMode=yes", re.sub(r"\x1b\[\d+m", "", line))
    refused = subprocess.run(wrong, shell=True, env=det.environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr
    det.works("shell", "kill", shell_id)
