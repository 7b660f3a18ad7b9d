"""The attempts of one call: what a stream that has worked is allowed after it breaks, and which error ends a call."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import pytest

from gangline.client import attempts
from gangline.client.attempts import Attempts, Route, WayBack, error_of_change, find_effects
from gangline.errors import Effect, ErrorKind, GanglineError, unavailable
from gangline.login import Login
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2 as pb


@dataclass(eq=False)
class Gateway:
    target: str


class Lost(grpc.RpcError):
    """A connection that broke."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(attempts, "time", clock)
    return clock


def make_route(*names: str, retry_seconds: float | None = 1.0) -> Route[Gateway]:
    addresses = ",".join(f"{name}:1" for name in names)
    route = Route(Login(addresses, "token"), 60, retry_seconds, [Gateway(f"the gateway at {name}:1") for name in names])
    route.gateways.sort(key=lambda gateway: gateway.target)
    route.chosen = route.current = route.gateways[0]
    return route


def test_stream_that_worked_for_long_has_all_its_time_again(clock: Clock) -> None:
    stream = Attempts(make_route("a"), is_stream=True)
    stream.succeed()
    clock.now += 1000
    assert stream.lose(Lost(), 1000, has_message=True) == 0.1
    clock.now += 5
    with pytest.raises(GanglineError):
        stream.lose(Lost(), 0.1, has_message=False)


def test_gateway_that_breaks_each_stream_after_a_message_gets_growing_pauses(clock: Clock) -> None:
    stream = Attempts(make_route("a"), is_stream=True)
    pauses = []
    for _ in range(5):
        clock.now += 2
        stream.succeed()
        pauses.append(stream.lose(Lost(), 2, has_message=True))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_lost_stream_names_the_way_back_only_after_it_has_worked(clock: Clock) -> None:
    way_back = WayBack("experiment 7", "gangline experiment follow 7")
    for has_worked in (True, False):
        route = make_route("a", "b", retry_seconds=0)
        stream = Attempts(route, is_stream=True, way_back=way_back)
        if has_worked:
            stream.succeed()
        # What broke in the middle of a call was reached; what could not be connected to was not.
        failure = Lost() if has_worked else _unconnected()
        stream.lose(failure, 0, has_message=False)
        with pytest.raises(GanglineError) as caught:
            stream.lose(failure, 0, has_message=False)
        assert ("come back with: gangline experiment follow 7" in caught.value.message) is has_worked


def test_the_next_gateway_is_asked_to_catch_up() -> None:
    route = make_route("a", "b")
    call = Attempts(route)
    assert call.metadata == rpc.token_metadata("token")
    assert call.fail(Lost()) == 0.0
    assert (call.gateway, route.chosen) == (route.gateways[1],) * 2
    assert call.metadata == rpc.token_metadata("token") + rpc.CATCH_UP_METADATA
    call.succeed()
    assert call.metadata == rpc.token_metadata("token")


def test_only_requests_with_an_id_are_changes() -> None:
    assert find_effects(pb.GetExperimentRequest(), is_open=False) is None
    assert find_effects(pb.ListExperimentsRequest(request_id="r"), is_open=False) is None
    assert find_effects(lambda: iter(()), is_open=False) is None
    assert find_effects(pb.KillExperimentRequest(request_id="r"), is_open=False) == []
    assert find_effects(pb.CreateExperimentRequest(request_id="r"), is_open=True) == [Effect.UNKNOWN]


@pytest.mark.parametrize(
    ("effects", "effect", "words"),
    [
        (
            [Effect.UNKNOWN, Effect.NONE],
            Effect.UNKNOWN,
            "it is not known whether this was done: away; repeat it",
        ),
        ([Effect.NONE], Effect.NONE, "nothing was changed: away"),
    ],
)
def test_error_of_a_change_counts_all_attempts(effects: list[Effect], effect: Effect, words: str) -> None:
    error = unavailable("gateway.stopping", "away", Effect.NONE)
    reworded = error_of_change(error, pb.KillExperimentRequest(request_id="r"), effects)
    assert (reworded.effect, reworded.request_id, reworded.kind) == (effect, "r", ErrorKind.UNAVAILABLE)
    assert reworded.message.startswith(words)


def _unconnected() -> Lost:
    failure = Lost()
    failure.details = lambda: "failed to connect to all addresses; last error: Connection refused"  # type: ignore[method-assign]  # of this one
    return failure
