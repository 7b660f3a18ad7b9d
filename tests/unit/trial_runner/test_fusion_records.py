"""The trial runner between a rank that asks what is remembered, and schedulers that may be away."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.v1 import rank_pb2, runner_pb2, types_pb2
from services.common.state_folder import StateFolder
from services.trial_runner import fusion_records
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.delivery.reporter import Reporter
from services.trial_runner.fusion_records import FusionRelay
from tests.support.delivery import find_no_fault
from tests.support.wait import until

_QUERY = rank_pb2.RankMessage(fusion_query=rank_pb2.RankFusionQuery(family="ab"))


def _desk(folder: Path) -> tuple[FusionRelay, Reporter, list[tuple[int, rank_pb2.RunnerMessage]]]:
    said: list[tuple[int, rank_pb2.RunnerMessage]] = []
    spec = runner_pb2.RunnerSpec(
        allocation=types_pb2.Allocation(id="7.1.1"), token="t", scheduler_addresses=["127.0.0.1:1"]
    )
    route = ChannelRoute("scheduler", spec.scheduler_addresses)
    reporter = Reporter(route, "7.1.1", 0, lambda answer: None, on_refusal=lambda _: None, find_fault=find_no_fault)
    return (
        FusionRelay(spec, StateFolder(folder), reporter, lambda rank, message: said.append((rank, message))),
        reporter,
        said,
    )


async def test_rank_gets_an_answer_when_no_scheduler_gives_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_records, "ANSWER_SECONDS", 0.1)
    desk, _, said = _desk(tmp_path)
    desk.on_message(0, _QUERY)
    await until(lambda: bool(said), "an answer", 60)
    assert said == [(0, rank_pb2.RunnerMessage(fusion_answer=rank_pb2.FusionAnswer(family="ab")))]
    await desk.close()


async def test_what_was_found_is_reported_and_only_by_the_chief(tmp_path: Path) -> None:
    desk, reporter, said = _desk(tmp_path)
    record = types_pb2.FusionRecord(key="ab-cd")
    for rank in (1, 0):
        desk.on_message(rank, rank_pb2.RankMessage(fusion_record=record))
        desk.on_message(rank, rank_pb2.RankMessage(fusion_forget=rank_pb2.RankFusionForget(key="ab-ef")))
        desk.on_message(rank, rank_pb2.RankMessage(first_step=rank_pb2.RankFirstStep(at=1.0)))
    assert [report.WhichOneof("report") for report in reporter.undelivered] == ["fusion", "forgotten_fusion"]
    assert reporter.undelivered[0].fusion == record
    assert reporter.undelivered[1].forgotten_fusion == "ab-ef"
    desk.on_message(1, _QUERY)
    await desk.close()
    assert said == []


async def test_question_that_is_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    desk, _, said = _desk(tmp_path)
    desk.on_message(0, _QUERY)
    await desk.close()
    assert said == []
