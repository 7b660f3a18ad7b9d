"""The client over a real network: what each method returns, what it sends again, and what it never does twice."""

from __future__ import annotations

import gzip
import io
import socket
import tarfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline.client import Client
from gangline.domain.history import LogFilter
from gangline.domain.state import LogLevel, Outcome, State
from gangline.errors import Effect, ErrorKind, GanglineError, invalid, unavailable
from gangline.protocol.wire import from_proto
from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2
from tests.support.stand_in_gateway import TOKEN, StandInGateway
from tests.support.view import make_agent_view, make_allocation, make_experiment, make_lifecycle, make_log, make_trial

CONFIG = "entrypoint: model_def:Digits\nsearcher: {name: single, metric: loss, max_length: 10}\ndebug: true\n"


def test_create_checks_uploads_and_submits(client: Client, gateway: StandInGateway, code: Path) -> None:
    gateway.warnings = ["from the cluster"]
    created = client.create_experiment(CONFIG, code)
    assert created.experiment.state is State.QUEUED
    assert created.warnings == (
        "debug: accepted, but has no effect here (every log line is kept)",
        "from the cluster",
    )
    payload = gateway.codes[gateway.requests[0].code_sha256]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(payload))) as tar:
        assert tar.getnames() == ["model_def.py"]


def test_nothing_is_sent_when_the_entrypoint_is_missing(client: Client, gateway: StandInGateway, code: Path) -> None:
    with pytest.raises(GanglineError, match=r"model_def\.py defines no Other"):
        client.create_experiment(CONFIG.replace("Digits", "Other"), code)
    assert gateway.calls == []


def test_create_that_lost_its_answer_makes_one_experiment(client: Client, gateway: StandInGateway, code: Path) -> None:
    first = client.create_experiment(CONFIG, code, request_id="r1")
    gateway.failures = [unavailable("scheduler.away", "no scheduler leads")] * 2
    again = client.create_experiment(CONFIG, code, request_id="r1")
    assert again.experiment.id == first.experiment.id
    assert len(gateway.experiments) == 1


def test_upload_that_fails_is_sent_whole_again(client: Client, gateway: StandInGateway, code: Path) -> None:
    gateway.failures = [unavailable("gateway.busy", "try again")]
    client.create_experiment(CONFIG, code)
    assert gateway.calls == ["UploadCode", "UploadCode", "CreateExperiment"]


def test_error_of_the_cluster_keeps_code_and_message(client: Client) -> None:
    with pytest.raises(GanglineError) as caught:
        client.get_experiment(5)
    assert (caught.value.code, caught.value.message, caught.value.kind) == (
        "experiment.not_found",
        "there is no experiment 5",
        ErrorKind.NOT_FOUND,
    )


def test_unavailable_is_retried_only_for_so_long(gateway: StandInGateway) -> None:
    gateway.failures = [unavailable("scheduler.away", "no scheduler leads")] * 100
    started = time.monotonic()
    with Client(gateway.address, TOKEN, retry_seconds=0.5) as client, pytest.raises(GanglineError) as caught:
        client.list_tasks()
    assert caught.value.message == "no scheduler leads"
    assert 1 < len(gateway.calls) < 100
    assert time.monotonic() - started < 10


def test_wrong_token_is_not_retried(gateway: StandInGateway) -> None:
    with Client(gateway.address, "wrong") as client, pytest.raises(GanglineError) as caught:
        client.list_agents()
    assert caught.value.code == "auth.wrong_token"
    assert gateway.calls == ["ListAgents"]


def test_address_where_nobody_listens_is_given_up_soon() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        started = time.monotonic()
        with Client(address, TOKEN) as client, pytest.raises(GanglineError) as caught:
            client.get_cluster()
    assert caught.value.code == "rpc.unreachable"
    assert caught.value.message.startswith(f"cannot reach the gateway at {address}: ")
    assert time.monotonic() - started < 10


def test_gateway_that_restarts_is_waited_for(client: Client, gateway: StandInGateway) -> None:
    assert client.list_experiments() == []
    gateway.stop()
    again = threading.Timer(0.3, gateway.start, [gateway.address])
    again.start()
    assert client.list_experiments() == []
    again.join()


def test_experiments_are_listed_newest_first_and_paged(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments = {n: make_experiment(id=n) for n in range(1, 6)}
    assert [e.id for e in client.list_experiments(limit=2)] == [5, 4]
    assert [e.id for e in client.list_experiments(limit=2, before_id=4)] == [3, 2]


def test_watch_ends_with_the_experiment(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()
    views = list(client.watch_experiment(1))
    assert [view.experiment.state for view in views] == [State.QUEUED, State.RUNNING, State.TERMINAL]
    waiting, running, ended = (view.trials[0] for view in views)
    assert waiting.reason is not None
    assert waiting.reason.message == "needs 4 slots; 2 are free"
    assert running.progress is not None
    assert (running.progress.batches_completed, running.progress.batches_total) == (50, 200)
    assert running.allocation is not None
    assert running.allocation.num_slots == 4
    assert ended.validation is not None
    assert ended.validation.metrics == {"accuracy": 0.972}
    assert client.wait_experiment(1).experiment.outcome is Outcome.COMPLETED


def test_watch_goes_on_after_a_lost_connection(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()
    gateway.break_after = 1
    views = list(client.watch_experiment(1))
    assert views[-1].experiment.state is State.TERMINAL
    assert gateway.calls == ["WatchExperiment", "WatchExperiment"]


def test_wait_gives_up_after_its_time(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    with pytest.raises(GanglineError) as caught:
        client.wait_experiment(1, seconds=0)
    assert (caught.value.code, caught.value.message) == (
        "experiment.wait_timeout",
        "experiment 1 has not ended after 0 s",
    )


def test_logs_come_once_each_over_a_lost_connection(client: Client, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(n, f"line {n}", rank=n % 2) for n in range(1, 6)]
    gateway.break_after = 3
    entries = list(client.stream_logs(1, tail=4))
    assert [(entry.id, entry.text, entry.rank) for entry in entries] == [(n, f"line {n}", n % 2) for n in range(2, 6)]
    assert [(request.tail, request.after_id) for request in gateway.log_requests] == [(4, 0), (0, 4)]


def test_filter_of_logs_is_sent_with_every_request(client: Client, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(n, f"line {n}") for n in range(1, 4)]
    gateway.break_after = 1
    when = datetime.fromtimestamp(5.0, UTC)
    list(client.stream_logs(1, "", 0, False, since=when, until=7, ranks=[0], level="error", agents="a1", pattern="x"))
    expected = LogFilter(5.0, 7.0, (0,), (LogLevel.ERROR, LogLevel.CRITICAL), ("a1",), "x")
    assert [from_proto(LogFilter, request.filter) for request in gateway.log_requests] == [expected] * 2
    list(client.stream_logs(1))
    assert not gateway.log_requests[-1].HasField("filter")


def test_gateway_that_ignores_filters_is_noticed(client: Client, gateway: StandInGateway) -> None:
    """Its lines would pass for lines that match."""
    gateway.knows_filters = False
    gateway.logs = [make_log(n, f"line {n}") for n in range(1, 4)]
    gateway.break_after = 1
    assert [entry.id for entry in client.stream_logs(1)] == [1, 2, 3]
    with pytest.raises(GanglineError) as caught:
        next(client.stream_logs(1, level="error"))
    assert (caught.value.code, caught.value.kind) == ("logs.unfiltered", ErrorKind.UNAVAILABLE)


def test_level_of_a_line(client: Client, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(1, "x", level="ERROR"), make_log(2, "of an older version", level="UNSPECIFIED")]
    assert [entry.level for entry in client.stream_logs(1)] == [LogLevel.ERROR, LogLevel.INFO]


def test_log_of_the_runner_has_no_rank(client: Client, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(1, "ready", rank=None)]
    entry = next(client.stream_logs(1))
    assert (entry.rank, entry.stream, entry.agent_id) == (None, "runner", "a1")


def test_metrics_by_group(client: Client, gateway: StandInGateway) -> None:
    gateway.metrics = [
        pb.StoredMetrics(
            id=n,
            trial_id="1.1",
            point=ingest_pb2.MetricsPoint(group=group, batches_completed=n, metrics={"loss": 1 / n}),
        )
        for n, group in enumerate(["training", "training", "validation"], start=1)
    ]
    assert [entry.id for entry in client.stream_metrics(1)] == [1, 2, 3]
    only = list(client.stream_metrics(1, group="validation"))
    assert [(entry.point.group, entry.point.batches_completed) for entry in only] == [("validation", 3)]


def test_tasks_agents_and_cluster(client: Client, gateway: StandInGateway) -> None:
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name="digits", allocation=make_allocation(("a1", 2))),
        pb.Task(trial=make_trial("QUEUED"), request=types_pb2.Request(trial_id="2.1", slots=8)),
    ]
    gateway.agents = [make_agent_view()]
    gateway.cluster.num_slots = 2
    running, waiting = client.list_tasks()
    assert running.allocation is not None
    assert running.request is None
    assert waiting.allocation is None
    assert waiting.request is not None
    assert waiting.request.slots == 8
    assert client.list_agents()[0].allocation_id_by_slot_id == {"a1/0": "1.1.1"}
    assert client.get_cluster().leader is None
    gateway.cluster.leader.id = "s1"
    assert client.get_cluster().leader is not None


def test_kill_ends_an_experiment_and_may_be_repeated(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment()
    assert client.kill_experiment(1).outcome is Outcome.CANCELED
    assert client.kill_experiment(1).outcome is Outcome.CANCELED


@pytest.fixture
def checkpoint(gateway: StandInGateway) -> StandInGateway:
    gateway.checkpoints = [types_pb2.Checkpoint(id="c0ffee", trial_id="1.1", experiment_id=1)]
    gateway.files = {"state.pt": b"0123456789", "code/model_def.py": b"x", "empty": b""}
    return gateway


def test_checkpoint_is_written_file_by_file(client: Client, checkpoint: StandInGateway, tmp_path: Path) -> None:
    target = tmp_path / "out" / "c"
    assert client.download_checkpoint("c0ffee", target) == 11
    content_by_path = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert content_by_path == checkpoint.files


def test_output_is_written_file_by_file(client: Client, checkpoint: StandInGateway, tmp_path: Path) -> None:
    assert client.download_output("1.1", tmp_path / "out") == 11
    target = tmp_path / "out"
    content_by_path = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert content_by_path == checkpoint.files


def test_download_that_breaks_leaves_nothing(client: Client, checkpoint: StandInGateway, tmp_path: Path) -> None:
    checkpoint.break_after = 2
    with pytest.raises(GanglineError):
        client.download_checkpoint("c0ffee", tmp_path / "out" / "c")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil"])
def test_file_outside_of_the_folder_is_refused(
    client: Client, checkpoint: StandInGateway, tmp_path: Path, path: str
) -> None:
    checkpoint.files = {path: b"x"}
    with pytest.raises(GanglineError) as caught:
        client.download_checkpoint("c0ffee", tmp_path / "out")
    assert caught.value.message == f"the gateway names a file {path!r}, which lies outside its folder"
    assert not (tmp_path / "evil").exists()


def test_folder_with_something_in_it_is_refused(client: Client, checkpoint: StandInGateway, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(GanglineError) as caught:
        client.download_checkpoint("c0ffee", tmp_path)
    assert caught.value.message == f"{tmp_path} exists already; give a folder that is new or empty"
    assert checkpoint.calls == []


def test_a_change_that_failed_says_what_is_known_over_all_its_attempts(gateway: StandInGateway, code: Path) -> None:
    lost, none = (unavailable("state.unwritable", "away", effect) for effect in (Effect.UNKNOWN, Effect.NONE))
    with Client(gateway.address, TOKEN, retry_seconds=0.8) as client:
        for failures, effect, message in (
            ([none] * 9, Effect.NONE, "nothing was created: away"),
            ([none, lost, *[none] * 9], Effect.UNKNOWN, "it is not known whether the experiment was created: away"),
        ):
            gateway.create_failures = list(failures)
            with pytest.raises(GanglineError) as caught:
                client.create_experiment(CONFIG, code, "mine")
            assert (caught.value.effect, caught.value.message, caught.value.request_id) == (effect, message, "mine")
        gateway.create_failures = [
            lost,
            invalid(
                "request.never_fits",
                "needs 16 slots",
            ),
        ]
        with pytest.raises(GanglineError) as caught:
            client.create_experiment(CONFIG, code, "other")
        assert (caught.value.effect, caught.value.message) == (Effect.NONE, "needs 16 slots")
        gateway.create_failures = []
        assert client.create_experiment(CONFIG, code, "mine").experiment.id == client.find_experiment("mine").id == 1


def test_a_cluster_that_was_never_reached_has_changed_nothing(gateway: StandInGateway) -> None:
    gateway.stop()
    with Client(gateway.address, TOKEN, retry_seconds=0) as client, pytest.raises(GanglineError) as caught:
        client.kill_experiment(1)
    assert (caught.value.code, caught.value.effect) == ("rpc.unreachable", Effect.NONE)
    assert caught.value.message.startswith("nothing was changed: cannot reach the gateway at ")
