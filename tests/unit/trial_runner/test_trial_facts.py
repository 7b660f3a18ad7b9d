"""The trial runner between ranks that ask about their trial, and schedulers that may be away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gangline.config.strategy_choice import CandidateRow, StrategyChoice
from gangline.v1 import ingest_pb2, rank_pb2, runner_pb2
from services.common.state_folder import StateFolder
from services.trial_runner import trial_facts
from services.trial_runner.trial_facts import MAX_QUESTIONS, TrialFacts
from tests.support.delivery import make_delivery
from tests.support.runner_peers import SchedulerPeer
from tests.support.runner_process import TOKEN, make_spec
from tests.support.wait import until


class World:
    """The runner's part beside a scheduler that is started later. said: the answers to ranks, in their order."""

    def __init__(self, folder: Path) -> None:
        self.scheduler = SchedulerPeer(TOKEN, ["a1"], [])
        self.said: list[tuple[int, rank_pb2.TrialAnswer]] = []
        self._folder = folder

    async def start(self, *, is_scheduler_up: bool = True, others: Sequence[str] = ()) -> None:
        """others: addresses of further schedulers."""
        await self.scheduler.start()
        addresses = [self.scheduler.address, *others]
        spec = make_spec([("a1", 1)], 0, "true", code_sha256="", scheduler=addresses, gateway=[])
        if not is_scheduler_up:
            await self.scheduler.stop()
        self.delivery, recorder = make_delivery(spec, self._folder)
        self.delivery.reporter.open()
        self.facts = TrialFacts(
            spec,
            StateFolder(self._folder),
            self.delivery.reporter,
            recorder,
            lambda rank, message: self.said.append((rank, message.trial_answer)),
        )

    def ask(self, number: int, rank: int = 0) -> None:
        query = rank_pb2.RankTrialQuery(number=number)
        self.facts.on_message(rank, rank_pb2.RankMessage(trial_query=query))

    def tell(self, metadata: object) -> None:
        text = metadata if isinstance(metadata, str) else json.dumps(metadata)
        self.facts.on_message(0, rank_pb2.RankMessage(trial_metadata=text))

    def validate(self, loss: float) -> None:
        point = ingest_pb2.MetricsPoint(group="validation", batches_completed=1, metrics={"loss": loss})
        self.delivery.reporter.add(runner_pb2.TrialReport(metrics=point))

    async def close(self) -> list[runner_pb2.TrialReport]:
        await self.facts.close()
        undelivered = await self.delivery.close(0.1)
        await self.scheduler.stop()
        return undelivered


async def test_an_answer_has_what_the_rank_has_sent_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.ask(1, rank=3)
    await until(lambda: len(world.said) == 1, "the first answer", 30)
    assert world.said == [(3, rank_pb2.TrialAnswer(number=1))]
    for number in range(50):
        world.tell({"n": number})
    world.validate(0.5)
    world.validate(0.25)
    world.ask(2)
    await until(lambda: len(world.said) == 2, "the second answer", 30)
    assert world.said[1] == (0, rank_pb2.TrialAnswer(number=2, metadata_json='{"n": 49}', best_validation=0.25))
    assert await world.close() == []


async def test_without_a_scheduler_a_question_ends_and_metadata_are_kept_for_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_facts, "ANSWER_SECONDS", 0.2)
    world = World(tmp_path)
    await world.start(is_scheduler_up=False)
    world.tell({"kept": True})
    world.ask(1)
    await until(lambda: bool(world.said), "the answer", 30)
    assert world.said == [(0, rank_pb2.TrialAnswer(number=1, problem="no scheduler has answered for 0 s"))]
    assert [report.metadata for report in await world.close()] == ['{"kept": true}']


async def test_a_change_of_the_leader_loses_nothing(tmp_path: Path) -> None:
    """The first scheduler is gone with what it was told last; the second one begins to lead afterwards."""
    world, second = World(tmp_path), SchedulerPeer(TOKEN, ["a1"], [])
    await second.start()
    second.leader_address = "127.0.0.1:1"
    await world.start(others=[second.address])
    world.tell({"n": 1})
    await until(lambda: len(world.scheduler.reports_of("metadata")) == 1, "the first report", 30)
    await world.scheduler.stop()
    world.tell({"n": 2})
    world.validate(0.5)
    world.ask(1)
    second.leader_address = ""
    await until(lambda: bool(world.said), "the answer", 60)
    assert world.said == [(0, rank_pb2.TrialAnswer(number=1, metadata_json='{"n": 2}', best_validation=0.5))]
    assert second.reports_of("metadata") == ['{"n": 2}']
    assert await world.close() == []
    await second.stop()


async def test_a_refusal_is_passed_on_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.scheduler.over_reason = "there is no attempt 1 of trial 1.1"
    world.ask(1)
    await until(lambda: bool(world.said), "the answer", 30)
    assert world.said[0][1].problem == "the scheduler refuses to answer: there is no attempt 1 of trial 1.1"
    await world.close()


@pytest.mark.parametrize("text", ["no JSON", "[1]", "[" * 9000 + "]" * 900, '{"x": "' + "y" * 20_000 + '"}'])
async def test_what_a_rank_sends_past_the_library_is_not_reported(tmp_path: Path, text: str) -> None:
    world = World(tmp_path)
    await world.start(is_scheduler_up=False)
    world.tell(text)
    world.tell({"fine": 1})
    assert [report.metadata for report in await world.close()] == ['{"fine": 1}']


async def test_the_choice_of_a_strategy_is_reported_if_it_can_be_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start(is_scheduler_up=False)
    record = StrategyChoice("ddp", 2, (CandidateRow("ddp", "ddp"),)).to_json()
    for text in ("{}", record):
        world.facts.on_message(0, rank_pb2.RankMessage(strategy_choice=text))
    assert [report.strategy_choice for report in await world.close()] == [record]


async def test_questions_at_a_time_have_a_limit_and_none_holds_up_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start(is_scheduler_up=False)
    for number in range(MAX_QUESTIONS + 2):
        world.ask(number)
    assert [answer.problem for _, answer in world.said] == ["too many questions are open"] * 2
    await asyncio.wait_for(world.close(), 30)
