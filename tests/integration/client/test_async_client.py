"""AsyncClient: the guarantees of the client that blocks, calls that end when they are cancelled, and many at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gangline import AsyncClient
from gangline.client import async_connection
from gangline.client.async_connection import MOST_CALLS, in_thread_to_its_end
from gangline.domain.state import Outcome, State
from gangline.errors import Effect, ErrorKind, GanglineError, unavailable
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.view import make_checkpoint, make_experiment, make_lifecycle, make_log
from tests.support.wait import until

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


def connect(pair: list[StandInGateway], retry_seconds: float = 5, call_seconds: float = 60) -> AsyncClient:
    """A client whose first choice is the first of them."""
    addresses = ",".join(server.address for server in pair)
    client = AsyncClient(addresses, TOKEN, retry_seconds=retry_seconds, call_seconds=call_seconds)
    connection = client._connection
    connection.gateways.sort(key=lambda gateway: not gateway.target.endswith(pair[0].address))
    connection.chosen = connection.current = connection.gateways[0]
    return client


@pytest_asyncio.fixture
async def client(pair: list[StandInGateway]) -> AsyncIterator[AsyncClient]:
    async with connect(pair) as connected:
        yield connected


async def test_life_of_an_experiment(client: AsyncClient, pair: list[StandInGateway], code: Path) -> None:
    gateway = pair[0]
    gateway.experiments.clear()
    experiment = await client.create_experiment(CONFIG, code)
    gateway.views[1] = make_lifecycle()
    gateway.views[1][-1].experiment.config_json = gateway.requests[0].config_json
    assert await experiment.wait(20) is Outcome.COMPLETED
    gateway.logs = [make_log(number, f"line {number}") for number in range(1, 4)]
    gateway.checkpoints = [make_checkpoint("a", loss=0.5), make_checkpoint("b", loss=0.4)]
    gateway.files = {"model.pt": b"0123456789", "metadata.json": b"{}"}
    assert [entry.text async for entry in experiment.logs()] == ["line 1", "line 2", "line 3"]
    [trial] = await experiment.trials()
    assert (await trial.experiment()).id == 1
    best = await experiment.top_checkpoint()
    folder = await best.download(code.parent / "model")
    assert (best.id, (folder / "model.pt").read_bytes()) == ("b", b"0123456789")
    await experiment.archive()
    assert [each.id async for each in client.experiments(archived=True)] == [1]


async def test_metrics_become_a_table(client: AsyncClient, pair: list[StandInGateway]) -> None:
    pytest.importorskip("pandas")
    pair[0].metrics = [_metric(number) for number in range(1, 4)]
    experiment = await client.experiment(1)
    metrics = experiment.metrics()
    assert (await anext(metrics)).id == 1
    assert (await metrics.to_pandas())["batches_completed"].tolist() == [20, 30]


async def test_create_that_lost_its_answer_asks_the_other_with_the_same_request(
    client: AsyncClient, pair: list[StandInGateway], code: Path
) -> None:
    first, second = pair
    first.create_failures = [unavailable("gateway.stopping", "this gateway is stopping")]
    created = await client.create_experiment(CONFIG, code)
    assert second.experiments[created.id].request_id == first.requests[0].request_id
    assert (first.calls, second.calls) == (["UploadCode", "CreateExperiment"], ["CreateExperiment"])


async def test_effect_of_a_change_counts_over_both_gateways(pair: list[StandInGateway], code: Path) -> None:
    first, second = pair
    first.create_failures = [unavailable("gateway.stopping", "stopping", Effect.UNKNOWN)]
    second.create_failures = [unavailable("gateway.stopping", "stopping", Effect.NONE)]
    async with connect(pair, retry_seconds=0) as client:
        with pytest.raises(GanglineError) as caught:
            await client.create_experiment(CONFIG, code)
    assert caught.value.effect is Effect.UNKNOWN
    assert caught.value.request_id


@pytest.mark.parametrize("stream", ["logs", "metrics", "wait"])
async def test_stream_goes_on_at_the_other_gateway_with_each_answer_once(
    client: AsyncClient, pair: list[StandInGateway], stream: str
) -> None:
    for server in pair:
        server.logs = [make_log(number, f"line {number}") for number in range(1, 8)]
        server.metrics = [_metric(number) for number in range(1, 8)]
        server.views[1] = make_lifecycle()
    pair[0].break_after = 2
    experiment = await client.experiment(1)
    pair[1].calls.clear()
    if stream == "wait":
        states: list[State] = []
        await experiment.wait(20, lambda view: states.append(view.experiment.state))
        assert states[-1] is State.TERMINAL
    elif stream == "logs":
        assert [entry.id async for entry in experiment.logs(follow=True)] == list(range(1, 8))
    else:
        assert [entry.id async for entry in experiment.metrics(follow=True)] == list(range(1, 8))
    assert len(pair[1].calls) == 1


async def test_follower_that_loses_its_only_gateway_names_the_way_back(pair: list[StandInGateway]) -> None:
    server = pair[0]
    server.views[1] = make_lifecycle()[:2]
    async with AsyncClient(server.address, TOKEN, retry_seconds=0.5) as client:
        views = client.watch_experiment(1)
        await anext(views)
        await asyncio.to_thread(server.stop)
        with pytest.raises(GanglineError) as caught:
            [view async for view in views]
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert caught.value.message.endswith("come back with: gangline experiment follow 1")


async def test_cancelled_call_ends_at_once_and_leaves_nothing(client: AsyncClient, pair: list[StandInGateway]) -> None:
    has_gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    pair[0].views[1] = make_lifecycle()[:2]
    pair[0].on_gone = lambda: loop.call_soon_threadsafe(has_gone.set)
    waiting = asyncio.create_task(client.wait_experiment(1))
    await until(pair[0].is_watched.is_set, "the watch", 10)
    began_at = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - began_at < 5
    async with asyncio.timeout(5):
        await has_gone.wait()
    connection = client._connection
    assert connection._num_streams == 0
    assert [lane.num_streams for gateway in connection.gateways for lane in gateway._lanes] == [0]
    await until(lambda: asyncio.all_tasks() == before, "no task left", 5)
    assert (await client.get_experiment(1)).experiment.id == 1


async def test_cancellation_ends_a_call_that_is_being_retried(pair: list[StandInGateway]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        async with AsyncClient(f"127.0.0.1:{probe.getsockname()[1]}", TOKEN, retry_seconds=60) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.get_cluster()


async def test_stream_that_is_left_ends_at_the_gateway(client: AsyncClient, pair: list[StandInGateway]) -> None:
    pair[0].views[1] = make_lifecycle()[:2]
    has_gone = threading.Event()
    pair[0].on_gone = has_gone.set
    async for _ in client.watch_experiment(1):
        await until(pair[0].is_watched.is_set, "all views sent", 5)
        break
    await until(has_gone.is_set, "the end of the stream at the gateway", 5)
    await until(lambda: client._connection._num_streams == 0, "no stream", 5)


async def test_hundreds_are_followed_at_once_while_calls_go_on(tmp_path: Path) -> None:
    """More than one connection carries: the server serves 256 calls on each."""
    server = StandInGateway(num_threads=420)
    server.start()
    try:
        for number in range(1, 401):
            server.experiments[number] = make_experiment(id=number)
        async with AsyncClient(server.address, TOKEN, retry_seconds=5) as client:
            waiting = [asyncio.create_task(client.wait_experiment(number)) for number in range(1, 401)]
            await until(lambda: server.calls.count("WatchExperiment") == 400, "400 streams", 30)
            assert len(await asyncio.gather(*(client.get_experiment(n) for n in range(1, 201)))) == 200
            assert [len(gateway._lanes) for gateway in client._connection.gateways] == [2]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert client._connection._num_streams == 0
    finally:
        server.stop()


async def test_calls_under_way_are_bounded(pair: list[StandInGateway], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_connection, "MOST_CALLS", 2)
    most = now = 0

    def count() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        time.sleep(0.01)
        now -= 1

    pair[0].before_answer = count
    async with connect(pair) as client:
        await asyncio.gather(*(client.get_experiment(1) for _ in range(20)))
    assert most <= 2 < MOST_CALLS


async def test_streams_beyond_the_limit_are_refused_by_name(
    client: AsyncClient, pair: list[StandInGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_connection, "MOST_STREAMS", 1)
    pair[0].views[1] = make_lifecycle()[:2]
    first = client.watch_experiment(1)
    await anext(first)
    with pytest.raises(GanglineError) as caught:
        await anext(client.watch_experiment(1))
    assert caught.value.code == "client.too_many_streams"


def test_client_of_another_event_loop_is_refused(pair: list[StandInGateway]) -> None:
    client = connect(pair)

    async def use() -> None:
        await client.get_experiment(1)

    async def close() -> None:
        await client.close()

    with asyncio.Runner() as runner:
        runner.run(use())
        with pytest.raises(GanglineError) as caught:
            asyncio.run(use())
        runner.run(close())
    assert caught.value.code == "client.other_loop"


async def test_cancelled_call_ends_after_the_work_whose_place_its_caller_clears() -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        assert may_end.wait(10)

    task = asyncio.create_task(in_thread_to_its_end(work))
    await until(has_begun.is_set, "the work", 5)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_download_leaves_no_file(
    client: AsyncClient, pair: list[StandInGateway], tmp_path: Path
) -> None:
    target = tmp_path / "into" / "model"
    has_begun = asyncio.Event()
    pair[0].checkpoints = [make_checkpoint("a")]
    pair[0].files = {f"part{number}": b"x" * 100_000 for number in range(200)}
    loop = asyncio.get_running_loop()

    def note(work: str, num_bytes: int, total_bytes: int) -> None:
        loop.call_soon_threadsafe(has_begun.set)

    client._on_progress = note
    downloading = asyncio.create_task(client.download_checkpoint("a", target))
    await has_begun.wait()
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    assert list(target.parent.iterdir()) == []


def _metric(number: int) -> pb.StoredMetrics:
    point = ingest_pb2.MetricsPoint(group="validation", batches_completed=10 * number, metrics={"accuracy": 0.5})
    return pb.StoredMetrics(id=number, trial_id="1.1", at=1000.0, point=point)
