"""A repeated `gangline experiment create`: it goes on with an open request, and asks before it makes a twin."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from gangline.cli.creation.repetition import CREATED_SECONDS
from gangline.errors import Effect, invalid, unavailable
from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli, Ran
from tests.support.stand_in_gateway import TOKEN, StandInGateway

LOST = unavailable("state.unwritable", "etcd has no quorum", Effect.UNKNOWN)
REFUSED = unavailable("state.unwritable", "etcd has no quorum", Effect.NONE)


@pytest.fixture
def create(cli: Cli, code: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`gangline experiment create` of one content, which is tried once only."""
    monkeypatch.setenv("GANGLINE_RETRY_SECONDS", "0")

    def call(*flags: str) -> Ran:
        return cli("experiment", "create", str(code / "const.yaml"), *flags)

    return call


def _memory(tmp_path: Path) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = json.loads((tmp_path / "home" / "submits.json").read_text())
    return entries


def test_the_same_again_within_a_minute_is_refused_with_one_line(create: Cli, gateway: StandInGateway) -> None:
    assert create().status == 0
    ran = create()
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "error: experiment 1 was created 0 s ago from the same configuration and code; to make another one, add "
        "--again; to see it: gangline experiment describe 1\n"
    )
    assert create("--json").status == 2
    assert create("--again").status == 0
    assert len(gateway.experiments) == 2


def test_another_content_user_or_cluster_is_no_repetition(create: Cli, code: Path, gateway: StandInGateway) -> None:
    assert create().status == 0
    (code / "model_def.py").write_text("class Digits(Base):\n    x = 1\n")
    assert create().status == 0
    assert create().status == 2
    gateway.cluster.cluster.id = "another"
    assert create().status == 0
    assert len(gateway.experiments) == 3


def test_one_that_has_failed_or_is_gone_may_be_repeated(create: Cli, gateway: StandInGateway) -> None:
    assert create().status == 0
    gateway.experiments[1].state = types_pb2.STATE_TERMINAL
    gateway.experiments[1].outcome = types_pb2.OUTCOME_FAILED
    assert create().status == 0, "the first one has failed"
    assert create().status == 2
    del gateway.experiments[2]
    gateway.experiments[3] = gateway.experiments[1]
    assert create().status == 0, "the second one is gone"


def test_after_a_minute_it_is_made_again(create: Cli, tmp_path: Path, gateway: StandInGateway) -> None:
    assert create().status == 0
    (entry,) = _memory(tmp_path)
    for name in ("wall", "boot"):
        entry[name] = float(str(entry[name])) - CREATED_SECONDS - 1
    (tmp_path / "home" / "submits.json").write_text(json.dumps([entry]))
    assert create().status == 0
    assert len(gateway.experiments) == 2


def test_on_a_terminal_it_asks(create: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert create().status == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    answers = iter([False, True])
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return next(answers)

    monkeypatch.setattr("typer.confirm", confirm)
    no = create()
    assert (no.status, no.err) == (1, "nothing was created\n")
    assert create().status == 0
    assert asked[0].endswith("make another one?")
    assert len(gateway.experiments) == 2


def test_an_open_outcome_says_what_to_do_and_the_same_command_goes_on(
    create: Cli, cli: Cli, gateway: StandInGateway
) -> None:
    gateway.create_failures = [LOST]
    ran = create()
    request_id = gateway.requests[0].request_id
    assert ran.status == 3
    assert ran.err.splitlines()[-1] == (
        "error: it is not known whether the experiment was created: etcd has no quorum; repeat it, which makes no "
        f"second one, or look: gangline experiment find {request_id}"
    )
    assert cli("experiment", "find", request_id).out == "experiment 1 digits: QUEUED\n"
    again = create()
    assert again.status == 0
    assert f"note: goes on with request {request_id} of " in again.err
    assert [request.request_id for request in gateway.requests] == [request_id, request_id]
    assert len(gateway.experiments) == 1
    assert create().status == 2


def test_a_certain_failure_leaves_nothing_to_go_on_with(create: Cli, gateway: StandInGateway, tmp_path: Path) -> None:
    for refusal, status, message in (
        (REFUSED, 1, "error: nothing was created: etcd has no quorum\n"),
        (invalid("request.never_fits", "needs 16 slots"), 2, "error: needs 16 slots\n"),
    ):
        gateway.create_failures = [refusal]
        ran = create()
        assert (ran.status, ran.err.splitlines(keepends=True)[-1]) == (status, message)
        assert _memory(tmp_path) == []
    assert create().status == 0
    assert len(gateway.experiments) == 1


def test_a_later_certain_failure_does_not_settle_an_earlier_open_one(create: Cli, gateway: StandInGateway) -> None:
    gateway.create_failures = [LOST]
    assert create().status == 3
    for failure in (REFUSED, REFUSED):
        gateway.create_failures = [failure]
        ran = create()
        assert (ran.status, "it is not known whether" in ran.err) == (3, True)
    gateway.stop()
    away = create()
    assert (away.status, "it is not known whether" in away.err) == (3, True)
    request_ids = [request.request_id for request in gateway.requests]
    assert len(set(request_ids)) == 1


def test_without_a_gateway_nothing_was_created(create: Cli, gateway: StandInGateway) -> None:
    gateway.stop()
    ran = create()
    assert ran.status == 1
    assert ran.err.startswith("error: nothing was created: cannot reach the gateway at ")


def test_an_own_request_id_makes_one_experiment(create: Cli, gateway: StandInGateway) -> None:
    for _ in range(2):
        ran = create("--request-id", "nightly-7")
        assert (ran.status, ran.out.startswith("created experiment 1 ")) == (0, True)
    gateway.create_failures = [LOST]
    assert create("--request-id", "nightly-8").status == 3
    gateway.create_failures = [REFUSED]
    assert create("--request-id", "nightly-8").status == 3, "the first of the two may have created it"


def test_the_file_is_private_and_holds_no_token(create: Cli, tmp_path: Path) -> None:
    create()
    path = tmp_path / "home" / "submits.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN not in path.read_text()


def test_a_damaged_or_unwritable_memory_stops_nothing(create: Cli, tmp_path: Path, gateway: StandInGateway) -> None:
    path = tmp_path / "home" / "submits.json"
    path.parent.mkdir()
    path.write_text('[{"digest": 1')
    assert create().status == 0
    lock = path.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    ran = create()
    assert (ran.status, "the request id cannot be kept" in ran.err) == (0, True)
    assert len(gateway.experiments) == 2


def test_a_wrong_retry_time_in_the_environment_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANGLINE_RETRY_SECONDS", "soon")
    ran = cli("experiment", "list")
    assert (ran.status, ran.err) == (
        2,
        "error: GANGLINE_RETRY_SECONDS is 'soon'; give a number of seconds, 0 or more\n",
    )


def test_a_create_goes_on_asking_with_one_request_id_for_so_long(create: Cli, gateway: StandInGateway) -> None:
    gateway.create_failures = [REFUSED, LOST, REFUSED, REFUSED]
    started = time.monotonic()
    ran = create("--retry-seconds", "30")
    assert ran.status == 0, ran.err
    assert time.monotonic() - started < 30
    assert len({request.request_id for request in gateway.requests}) == 1
    assert os.environ["GANGLINE_RETRY_SECONDS"] == "0"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ("gangline.client.submission.pack_code", "\nnothing was created\n"),
        ("gangline.client.Client.upload_code", "\nnothing was created\n"),
        ("gangline.client.Client.get_cluster", "\nnothing was created\n"),
        (
            "gangline.client.Client._submit_again",
            "\nit is not known whether the experiment was created; repeat it, which ",
        ),
    ],
    ids=["packing", "sending", "asking", "submitting"],
)
def test_ctrl_c_says_whether_anything_exists(
    create: Cli, monkeypatch: pytest.MonkeyPatch, gateway: StandInGateway, step: str, text: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step, interrupt)
        ran = create()
    assert (ran.status, ran.out) == (130, "")
    assert ran.err.startswith(text)
    assert gateway.experiments == {}
    # Only a submit that was sent is gone on with.
    again = create()
    assert again.status == 0
    assert ("whose outcome is not known" in again.err) == ("not known" in text)


def test_ctrl_c_while_a_repeated_submit_sends_leaves_the_first_one_open(
    create: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gangline.client.Client._submit_again", interrupt)
        create()
    with monkeypatch.context() as patched:
        patched.setattr("gangline.client.Client.upload_code", interrupt)
        assert "it is not known whether the experiment was created" in create().err
    assert "whose outcome is not known" in create().err
