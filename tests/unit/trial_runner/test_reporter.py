"""Reports of checkpoints that a rank has not made, on the way to the scheduler and at the end of the runner."""

from __future__ import annotations

import pytest

from gangline.v1 import runner_pb2, types_pb2
from services.trial_runner.delivery.channel_route import ChannelRoute
from services.trial_runner.delivery.reporter import Reporter


@pytest.mark.parametrize(("fault", "left"), [("false", ["own", "w"]), (None, ["own", "false", "false", "w"])])
async def test_what_is_left_for_the_agent_is_looked_at_too(fault: str | None, left: list[str]) -> None:
    """A storage that does not answer is asked once, and nothing is lost for that."""
    told: list[str] = []
    asked: list[str] = []

    async def find_fault(checkpoint: types_pb2.Checkpoint) -> str | None:
        asked.append(checkpoint.id)
        return fault if checkpoint.id == "false" else ""

    reporter = Reporter(
        ChannelRoute("scheduler", ["127.0.0.1:1"]),
        "7.1.1",
        0,
        lambda answer: None,
        on_refusal=told.append,
        find_fault=find_fault,
    )
    for name in ("own", "false", "false"):
        reporter.add(runner_pb2.TrialReport(checkpoint=types_pb2.Checkpoint(id=name)))
    reporter.add(runner_pb2.TrialReport(waiting=runner_pb2.WaitingReport(text="w")))
    await reporter.screen()
    assert [report.checkpoint.id or report.waiting.text for report in reporter.undelivered] == left
    assert told == (["false", "false"] if fault else [])
    assert asked == ["own", "false", "false"][: len(asked)]
    assert len(asked) == (3 if fault else 2)
