"""For how long the leader has been silent, as this agent and the runners that ask it count."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from gangline.v1 import agent_pb2
from services.agent.connection.leader_answers import LeaderAnswers

LEASE_SECONDS = 8.0


def _welcome(*, promises_answers: bool = True) -> agent_pb2.AgentWelcome:
    return agent_pb2.AgentWelcome(lease_seconds=LEASE_SECONDS, answers_heartbeats=promises_answers)


async def test_a_leader_is_silent_since_the_newest_message_that_it_has_answered() -> None:
    answers, now = LeaderAnswers(asyncio.Queue()), time.monotonic()
    assert answers.silence_seconds == math.inf
    answers.on_welcome(_welcome(), now - 6)
    assert answers.silence_seconds == 0, "an older leader answers no heartbeats"
    for sent_at in (now - 5, now - 3):
        answers.on_heartbeat(sent_at)
    answers.on_answer()
    assert answers.silence_seconds == pytest.approx(5, abs=1)
    answers.on_answer()
    assert answers.silence_seconds == pytest.approx(3, abs=1)
    answers.on_welcome(_welcome(), now - 9)
    answers.on_lost()
    assert answers.silence_seconds == pytest.approx(9, abs=1), "the welcome is the newest answer of this stream"


async def test_an_agent_that_is_late_itself_has_no_opinion_of_the_leader() -> None:
    answers, now = LeaderAnswers(asyncio.Queue()), time.monotonic()
    answers.on_welcome(_welcome(), now)
    answers.heartbeat_at = now - LEASE_SECONDS
    assert math.isnan(answers.witnessed_silence_seconds)
    answers.heartbeat_at = now
    assert answers.witnessed_silence_seconds == 0
    answers.heartbeat_at = now - LEASE_SECONDS
    answers.on_lost()
    assert answers.witnessed_silence_seconds == pytest.approx(0, abs=1), "without a stream, no heartbeat is due"


async def test_a_wait_ends_with_an_answer_that_is_young_enough() -> None:
    answers, now = LeaderAnswers(asyncio.Queue()), time.monotonic()
    answers.on_welcome(_welcome(), now)
    for sent_at in (now - LEASE_SECONDS, now):
        answers.on_heartbeat(sent_at)
    answers.on_answer()
    waiting = asyncio.create_task(answers.wait_until_heard())
    await asyncio.sleep(0)
    assert not waiting.done()
    answers.on_answer()
    await asyncio.wait_for(waiting, 10)


async def test_a_leader_that_promises_no_answers_is_not_waited_for() -> None:
    outbox: asyncio.Queue[agent_pb2.ConnectRequest] = asyncio.Queue()
    answers = LeaderAnswers(outbox)
    answers.on_welcome(_welcome(promises_answers=False), time.monotonic())
    await asyncio.wait_for(answers.ask_leader(), 10)
    answers.on_question(time.monotonic())
    await asyncio.wait_for(answers.ask_leader(), 10)
    assert outbox.qsize() == 2, "a question that is on its way counts for no later one"
