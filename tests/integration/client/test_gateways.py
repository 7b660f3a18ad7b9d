"""A client of several gateways: which one it uses, when it changes, and what it never sends to another."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.client import Client
from gangline.domain.state import State
from gangline.errors import Effect, ErrorKind, GanglineError, unavailable
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.view import make_experiment, make_lifecycle, make_log

CONFIG = "entrypoint: model_def:Digits\nsearcher: {name: single, metric: loss, max_length: 10}\n"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandInGateway]]:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    servers = [StandInGateway(), StandInGateway()]
    for server in servers:
        server.start()
        server.experiments[1] = make_experiment()
    yield servers
    for server in servers:
        server.stop()


def connect(pair: list[StandInGateway], retry_seconds: float = 5, call_seconds: float = 60) -> Client:
    """A client whose first choice is the first of them."""
    addresses = ",".join(server.address for server in pair)
    client = Client(addresses, TOKEN, retry_seconds=retry_seconds, call_seconds=call_seconds)
    connection = client._connection
    connection.gateways.sort(key=lambda gateway: not gateway.target.endswith(pair[0].address))
    connection.chosen = connection.current = connection.gateways[0]
    return client


def test_clients_spread_and_each_stays_where_it_is(pair: list[StandInGateway]) -> None:
    for _ in range(40):
        before = [len(server.calls) for server in pair]
        with Client(",".join(server.address for server in pair), TOKEN) as client:
            for _ in range(3):
                client.list_experiments()
        assert sorted(len(server.calls) - count for server, count in zip(pair, before, strict=True)) == [0, 3]
    # One in 10^12 runs has all clients at one gateway.
    assert all(server.calls for server in pair)


def test_call_goes_on_at_the_other_gateway_and_stays_there(pair: list[StandInGateway]) -> None:
    first, second = pair
    with connect(pair) as client:
        client.list_experiments()
        first.stop()
        started = time.monotonic()
        assert [experiment.id for experiment in client.list_experiments()] == [1]
        first.start(first.address)
        assert [experiment.id for experiment in client.list_experiments()] == [1]
        assert time.monotonic() - started < 5
    assert (first.calls, second.calls) == (["ListExperiments"], ["ListExperiments"] * 2)


def test_only_the_first_calls_at_another_gateway_ask_it_to_catch_up(pair: list[StandInGateway]) -> None:
    first, second = pair
    second.failures = [unavailable("history.unreadable", "not now")]
    with connect(pair) as client:
        client.list_experiments()
        first.failures = [unavailable("gateway.stopping", "stopping")] * 2
        for _ in range(3):
            client.list_experiments()
    assert (first.num_catch_ups, second.num_catch_ups) == (0, 2)
    assert (len(first.calls), len(second.calls)) == (3, 4)


def test_first_call_finds_the_gateway_that_lives(pair: list[StandInGateway]) -> None:
    pair[0].stop()
    with connect(pair, retry_seconds=0) as client:
        assert [experiment.id for experiment in client.list_experiments()] == [1]


@pytest.mark.parametrize("code", ["gateway.stopping", "gateway.behind", "history.unreadable"])
def test_gateway_that_answers_unavailable_is_left(pair: list[StandInGateway], code: str) -> None:
    first, second = pair
    first.failures = [unavailable(code, "not now")] * 9
    with connect(pair) as client:
        assert [experiment.id for experiment in client.list_experiments()] == [1]
        client.list_experiments()
    assert (len(first.calls), len(second.calls)) == (1, 2)


def test_read_that_is_not_answered_in_time_is_tried_at_the_other_once(
    pair: list[StandInGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()
    monkeypatch.setattr(pair[0], "before_answer", may_answer.wait)
    try:
        with connect(pair, call_seconds=0.5) as client:
            assert [experiment.id for experiment in client.list_experiments()] == [1]
        monkeypatch.setattr(pair[1], "before_answer", may_answer.wait)
        with connect(pair, call_seconds=0.5) as client, pytest.raises(GanglineError) as caught:
            client.list_experiments()
    finally:
        may_answer.set()
    assert caught.value.code == "rpc.timeout"
    assert [len(server.calls) for server in pair] == [2, 2]


def test_own_trouble_of_a_gateway_is_no_reason_to_give_up_before_the_other_was_asked(
    pair: list[StandInGateway],
) -> None:
    pair[0].failures = [unavailable("gateway.stopping", "this gateway is stopping")]
    with connect(pair, retry_seconds=0) as client:
        client.list_experiments()
    assert pair[1].calls == ["ListExperiments"]


def test_wrong_token_is_not_tried_at_the_other(pair: list[StandInGateway]) -> None:
    with Client(",".join(server.address for server in pair), "wrong") as client:
        for call in (client.list_agents, lambda: list(client.stream_logs(1))):
            with pytest.raises(GanglineError) as caught:
                call()
            assert (caught.value.code, caught.value.kind) == ("auth.wrong_token", ErrorKind.UNAUTHENTICATED)
    assert sorted(len(server.calls) for server in pair) == [0, 2]


def test_refusal_is_not_tried_at_the_other(pair: list[StandInGateway]) -> None:
    with connect(pair) as client, pytest.raises(GanglineError) as caught:
        client.get_experiment(5)
    assert caught.value.code == "experiment.not_found"
    assert pair[1].calls == []


def test_create_that_lost_its_answer_asks_the_other_with_the_same_request(
    pair: list[StandInGateway], code: Path
) -> None:
    first, second = pair
    first.create_failures = [unavailable("gateway.stopping", "this gateway is stopping")]
    with connect(pair) as client:
        created = client.create_experiment(CONFIG, code)
    assert second.experiments[created.experiment.id].request_id == first.requests[0].request_id
    assert (first.calls, second.calls) == (["UploadCode", "CreateExperiment"], ["CreateExperiment"])


def test_effect_counts_over_both_gateways(pair: list[StandInGateway], code: Path) -> None:
    first, second = pair
    first.create_failures = [unavailable("gateway.stopping", "stopping", Effect.UNKNOWN)]
    second.create_failures = [unavailable("gateway.stopping", "stopping", Effect.NONE)]
    with connect(pair, retry_seconds=0) as client, pytest.raises(GanglineError) as caught:
        client.create_experiment(CONFIG, code)
    assert caught.value.effect is Effect.UNKNOWN


def test_logs_go_on_at_the_other_gateway_with_each_line_once(pair: list[StandInGateway]) -> None:
    first, second = pair
    for server in pair:
        server.logs = [make_log(number, f"line {number}") for number in range(1, 8)]
    first.break_after = 3
    with connect(pair) as client:
        assert [entry.id for entry in client.stream_logs(1, follow=True)] == [1, 2, 3, 4, 5, 6, 7]
    assert second.calls == ["StreamLogs"]


def test_watch_shows_each_view_once(pair: list[StandInGateway]) -> None:
    queued, running, ended = make_lifecycle()
    pair[0].views[1] = [queued, running, ended]
    pair[0].break_after = 2
    pair[1].views[1] = [running, ended]
    with connect(pair) as client:
        states = [view.experiment.state for view in client.watch_experiment(1)]
    assert states == [State.QUEUED, State.RUNNING, State.TERMINAL]


def test_when_none_can_be_reached_the_error_names_all() -> None:
    addresses = []
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{probe.getsockname()[1]}")
        with Client(",".join(addresses), TOKEN, retry_seconds=0) as client, pytest.raises(GanglineError) as caught:
            client.get_cluster()
    assert caught.value.message.startswith(f"cannot reach the gateways at {', '.join(addresses)}: ")


def test_answer_says_more_than_that_the_other_gateway_is_away(pair: list[StandInGateway]) -> None:
    pair[0].failures = [unavailable("gateway.no_leader", "no scheduler leads this cluster")] * 99
    pair[1].stop()
    with connect(pair, retry_seconds=0.5) as client, pytest.raises(GanglineError) as caught:
        client.list_experiments()
    assert caught.value.message == "no scheduler leads this cluster"


def test_follower_that_loses_its_only_gateway_names_the_way_back(pair: list[StandInGateway]) -> None:
    server = pair[0]
    server.views[1] = make_lifecycle()[:2]
    with Client(server.address, TOKEN, retry_seconds=0.5) as client:
        views = client.watch_experiment(1)
        assert next(views).experiment.state is State.QUEUED
        server.stop()
        with pytest.raises(GanglineError) as caught:
            list(views)
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert caught.value.message == (
        f"the gateway at {server.address} has not answered for 0 s; experiment 1 goes on without it; "
        "come back with: gangline experiment follow 1"
    )
