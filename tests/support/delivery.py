"""The parts of a trial runner that deliver, without the runner."""

from __future__ import annotations

from pathlib import Path

from gangline.v1 import runner_pb2, types_pb2
from services.common.state_folder import StateFolder
from services.trial_runner.delivery.delivery import Delivery
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.spool_folder import SpoolFolder


async def find_no_fault(_: types_pb2.Checkpoint) -> str | None:
    return ""


def make_delivery(spec: runner_pb2.RunnerSpec, state: Path) -> tuple[Delivery, Recorder]:
    """Returns the delivery of agent a1, and the recorder whose records it delivers. state: the agent's directory."""
    spool_folder = SpoolFolder(spec, "a1", state / "spool")
    recorder = Recorder(spool_folder.spool, "a1")
    delivery = Delivery(
        spec,
        StateFolder(state),
        spool_folder,
        recorder,
        on_trace=lambda _: None,
        on_over=lambda _: None,
        find_fault=find_no_fault,
    )
    return delivery, recorder
