"""Ranks whose code calls different collectives: the error of the trial is what gloo says of it."""

from __future__ import annotations

import pytest

from gangline.domain.state import ExitKind
from tests.integration.trial_runner.conftest import World

JOIN = """
import time, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds={seconds}))
rank = dist.get_rank()
dist.all_reduce(torch.zeros(4))
{call}
time.sleep(30)
"""


@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
async def test_collectives_of_different_sizes_end_with_the_line_of_gloo(world: World, sizes: tuple[int, ...]) -> None:
    script = JOIN.format(seconds=60, call="dist.all_reduce(torch.zeros(4 if rank else 8))")
    await world.start(script, sizes)
    reports = await world.wait(40)
    [cause] = [report for report in reports if report.kind is not ExitKind.PEER_FAILED]
    assert cause.kind is ExitKind.USER_ERROR, cause
    assert cause.message.startswith("gloo::EnforceNotMet: [enforce fail at "), cause.message
    assert "op.preamble.length <= op.nbytes. 8 vs 4" in cause.message
    assert "SIGABRT" not in cause.message
    for report in reports:
        # The other members hear the same line, not the signal.
        assert "op.preamble.length" in report.message, report.message


async def test_different_collectives_end_with_the_line_of_gloo(world: World) -> None:
    call = "dist.all_reduce(torch.zeros(4)) if rank else dist.broadcast(torch.zeros(4), 1)"
    await world.start(JOIN.format(seconds=2, call=call), (2,))
    (report,) = await world.wait(40)
    assert report.message.startswith("RuntimeError: [")
    assert "gloo/transport/tcp" in report.message
    assert "Timed out waiting 2000ms" in report.message
