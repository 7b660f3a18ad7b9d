"""The reports that a runner sends to the scheduler from its ranks' messages, and how often."""

from __future__ import annotations

from copy import deepcopy

from gangline.v1 import ingest_pb2, rank_pb2, runner_pb2, types_pb2
from services.trial_runner.delivery.metrics import loss as loss_gauge
from services.trial_runner.delivery.relay import MAX_WAIT_CHARACTERS, PROGRESS_SECONDS, Relay


class Told:
    """Stands in for the reporter and the recorder."""

    def __init__(self) -> None:
        self.reports: list[runner_pb2.TrialReport] = []
        self.recorded: list[int] = []
        self.metrics: list[tuple[ingest_pb2.MetricsPoint, float]] = []

    def add(self, report: runner_pb2.TrialReport) -> None:
        self.reports.append(report)

    def record_progress(self, completed: int, _total: int, _samples_per_second: float, _at: float) -> None:
        self.recorded.append(completed)

    def record_metrics(self, point: ingest_pb2.MetricsPoint, at: float) -> None:
        self.metrics.append((deepcopy(point), at))

    @property
    def batches(self) -> list[int]:
        return [report.progress.batches_completed for report in self.reports if report.HasField("progress")]

    @property
    def kinds(self) -> list[str | None]:
        return [report.WhichOneof("report") for report in self.reports]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_relay() -> tuple[Relay, Told, Clock]:
    told, clock = Told(), Clock()
    trial = types_pb2.Trial(id="7.1", experiment_id=7)
    return Relay(trial, told, told, lambda _at: None, clock), told, clock  # type: ignore[arg-type]  # a stand-in


def progress(batches: int) -> rank_pb2.RankMessage:
    return rank_pb2.RankMessage(progress=rank_pb2.RankProgress(batches_completed=batches, batches_total=100))


def test_all_progress_is_recorded_and_the_scheduler_hears_it_every_few_seconds() -> None:
    relay, told, clock = make_relay()
    for second in range(12):
        clock.now = 100.0 + second
        relay.on_message(0, progress(second))
    assert told.recorded == list(range(12))
    assert told.batches == [0, int(PROGRESS_SECONDS), 2 * int(PROGRESS_SECONDS)]


def test_the_newest_progress_goes_before_a_checkpoint_and_a_validation() -> None:
    relay, told, _ = make_relay()
    relay.on_message(0, progress(1))
    relay.on_message(0, progress(2))
    relay.on_message(0, rank_pb2.RankMessage(checkpoint=types_pb2.Checkpoint(id="c1")))
    relay.on_message(0, progress(3))
    metrics = ingest_pb2.MetricsPoint(group="validation", batches_completed=3, metrics={"loss": 0.5})
    relay.on_message(0, rank_pb2.RankMessage(metrics=metrics))
    assert told.kinds == ["progress", "progress", "checkpoint", "progress", "metrics"]
    assert told.batches == [1, 2, 3]


def test_the_rest_is_told_once_when_the_ranks_have_ended() -> None:
    relay, told, _ = make_relay()
    relay.on_message(0, progress(1))
    relay.on_message(0, progress(2))
    relay.tell_rest()
    relay.tell_rest()
    assert told.batches == [1, 2]


def test_a_loss_of_another_group_is_not_shown_as_that_of_the_training() -> None:
    relay, _, _ = make_relay()
    for group, loss in (("training", 0.5), ("mine", 7.0)):
        metrics = ingest_pb2.MetricsPoint(group=group, batches_completed=3, metrics={"loss": loss})
        relay.on_message(0, rank_pb2.RankMessage(metrics=metrics))
    shown = {sample.labels["group"]: sample.value for metric in loss_gauge.collect() for sample in metric.samples}
    assert shown["training"] == 0.5
    assert "mine" not in shown


def test_a_wait_is_reported_once_and_the_rank_that_waits_first_speaks_for_all() -> None:
    relay, told, _ = make_relay()

    def say(rank: int, text: str) -> None:
        relay.on_message(rank, rank_pb2.RankMessage(waiting=rank_pb2.RankWaiting(text=text)))

    for rank, text in ((1, "full"), (0, "silent"), (1, "full"), (0, ""), (1, ""), (1, ""), (0, "x" * 5000)):
        say(rank, text)
    assert [report.waiting.text for report in told.reports] == ["full", "", "x" * MAX_WAIT_CHARACTERS]


def test_only_the_chief_tells_progress() -> None:
    relay, told, _ = make_relay()
    relay.on_message(1, progress(5))
    relay.tell_rest()
    assert told.reports == []


def test_a_report_is_recorded_as_the_rank_has_sent_it() -> None:
    relay, told, _ = make_relay()
    point = ingest_pb2.MetricsPoint(
        group="validation", batches_completed=3, metrics={"loss": 0.5}, values_json='{"not": JSON}'
    )
    message = rank_pb2.RankMessage(metrics=point, at=7.5, units=1.5)
    relay.on_message(0, rank_pb2.RankMessage.FromString(message.SerializeToString()))
    assert told.metrics == [(point, 7.5)]
    assert told.reports[-1].units == 1.5
    # The scheduler gets what decides.
    point.values_json = ""
    assert told.reports[-1].metrics == point


def test_a_length_that_the_rank_does_not_know_is_absent() -> None:
    relay, told, _ = make_relay()
    relay.on_message(0, metrics(1, "validation"))
    relay.on_message(1, metrics(2, "validation"))
    assert told.kinds == ["progress", "metrics"], "the scheduler decides by the chief alone"
    assert not told.reports[-1].HasField("units")


def metrics(batches: int, group: str = "training") -> rank_pb2.RankMessage:
    return rank_pb2.RankMessage(
        metrics=ingest_pb2.MetricsPoint(group=group, batches_completed=batches, metrics={"a": 1})
    )


def test_metrics_of_a_script_are_progress_too() -> None:
    relay, told, clock = make_relay()
    for batches in (10, 20, 30):
        relay.on_message(0, metrics(batches))
    relay.on_message(1, metrics(99))
    assert told.batches == [10]
    clock.now += PROGRESS_SECONDS
    relay.on_message(0, metrics(40))
    assert told.batches == [10, 40]
    relay.on_message(0, progress(50))
    relay.on_message(0, metrics(60, "validation"))
    assert told.batches == [10, 40, 60], "progress that was reported before its metrics is behind them"
    assert told.kinds[-2:] == ["progress", "metrics"]
    assert told.reports[-2].progress.batches_total == 100


def test_a_metric_a_checkpoint_and_progress_are_reports() -> None:
    metrics = rank_pb2.RankMessage(metrics=ingest_pb2.MetricsPoint(group="mine"))
    checkpoint = rank_pb2.RankMessage(checkpoint=types_pb2.Checkpoint(id="c1"))
    waiting = rank_pb2.RankMessage(waiting=rank_pb2.RankWaiting(text="storage"))
    seen = []
    for message in (metrics, checkpoint, progress(1), waiting):
        relay, _, _ = make_relay()
        relay.on_message(0, message)
        seen.append((relay.has_results, relay.has_reported))
    assert seen == [(True, True), (True, True), (False, True), (False, False)]
