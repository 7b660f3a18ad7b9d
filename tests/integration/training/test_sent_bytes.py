"""Ranks send the bytes that the plan counts for each strategy, and keep those of its memory formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sized import SizedTrial
from gangline.pytorch.plan.measure import measure_trial
from gangline.pytorch.plan.rule import Candidate, Work, list_candidates
from gangline.pytorch.plan.step_time import Place
from tests.support.gang import run_gang
from tests.support.sent_work import HPARAMS, Sent, train_all

_WHOLE: dict[str, Any] = {name: name for name in ("ddp", "zero1", "zero2", "zero3")}
_STAGES = {"strategy": "pipeline", "stages": 2}
# One replica sends activations alone.
_ALONE = "pipeline (stages 2)"
_CASES: dict[int, dict[str, Any]] = {
    2: _WHOLE | {_ALONE: _STAGES},
    4: _WHOLE
    | {
        "hsdp": "hsdp",
        _ALONE: _STAGES,
        "pipeline (stages 2 replicas zero2)": {**_STAGES, "replicas": "zero2"},
    },
}


def _rows(size: int, *, reduces_whole: bool) -> dict[str, Candidate]:
    """The plan's rows, in which seconds are bytes: a byte takes a second, everything else no time."""
    measured = measure_trial(SizedTrial, HPARAMS, {}, size, is_gpu=False)
    # hsdp makes two copies on four ranks of one machine, as on two machines.
    place = Place(
        size,
        2,
        slot_flops=math.inf,
        inside_rate=1,
        across_rate=1,
        message_seconds=0,
        reduces_whole=reduces_whole,
        kernel_seconds=0,
        memory_rate=math.inf,
        copy_rate=math.inf,
    )
    rows = list_candidates(measured.size, Work(HPARAMS["global_batch_size"]), place)
    # The owners of zero1 send one after the other, and each waits for the parts that the others receive.
    waited = measured.size.gradient * measured.size.parameters / size
    rows = [replace(row, seconds=row.seconds - waited) if row.strategy == "zero1" else row for row in rows]
    return {_short_name(row): row for row in rows if row.memory is not None}


def _short_name(row: Candidate) -> str:
    words = " ".join(f"{key} {value}" for key, value in row.options if key != "microbatches")
    return f"{row.strategy} ({words})" if words else row.strategy


def _most(values: list[float], is_pipeline: bool) -> float:
    """The mean of the ranks, in a pipeline of the two replicas of the stage that has most."""
    if not is_pipeline:
        return sum(values) / len(values)
    return max((values[stage] + values[stage + 2]) / 2 for stage in (0, 1))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_send_and_keep_the_bytes_of_the_plan(size: int, tmp_path: Path) -> None:
    cases = _CASES[size]
    found: list[list[Sent]] = run_gang(size, tmp_path, train_all, tmp_path / "work", list(cases.values()))
    over_gloo, in_rings = (_rows(size, reduces_whole=whole) for whole in (True, False))
    for name, ranks in zip(cases, zip(*found, strict=True), strict=True):
        is_pipeline = name.startswith("pipeline")
        if (size, name) != (2, _ALONE):
            written, counted = (
                _most([getattr(rank, key) for rank in ranks], is_pipeline) for key in ("written", "in_rings")
            )
            assert written == pytest.approx(over_gloo[name].seconds, rel=0.05), name
            # Modules outside of blocks are gathered once in zero3.
            assert counted == pytest.approx(in_rings[name].seconds, rel=0.06 if name == "zero3" else 0.05), name
        memory = over_gloo[name].memory
        assert memory is not None
        for part in ("parameters", "gradients", "optimizer"):
            most = max(rank.kept[part] for rank in ranks)
            assert most == pytest.approx(getattr(memory, part), rel=0.05), (name, part)
