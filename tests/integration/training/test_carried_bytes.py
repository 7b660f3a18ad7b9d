"""Pipelines of models with skip connections carry, send and keep what the plan counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gangline.pytorch.parallel.staged.unit import divide_units
from gangline.pytorch.plan.measure import Measured, measure_trial
from gangline.pytorch.plan.rule import Work, list_candidates
from gangline.pytorch.plan.stages import Pipeline, border_bytes, stage_memory
from gangline.pytorch.plan.step_time import Place
from tests.support.carried_work import RECORDS, CarriedTrial, train_all
from tests.support.gang import run_gang

_MICROBATCHES = 8
# Interleaved1F1B makes four parts on two ranks.
_CASES = (("unet", "1F1B"), ("unet", "Interleaved1F1B"), ("residual", "Interleaved1F1B"))
# Later parts do not need the stem of the other model.
_CARRY: dict[str, list[str]] = {"unet": [], "residual": ["stem"]}


def _section(model: str, schedule: str) -> dict[str, Any]:
    return {"strategy": "pipeline", "schedule": schedule, "microbatches": _MICROBATCHES, "carry": _CARRY[model]}


def _hparams(model: str) -> dict[str, Any]:
    return {"model": model, "global_batch_size": RECORDS}


def _measure(model: str) -> Measured:
    config = {"parallelism": {"strategy": "pipeline", "carry": _CARRY[model]}}
    return measure_trial(CarriedTrial, _hparams(model), config, 2, is_gpu=False)


def _pipeline(measured: Measured, schedule: str) -> Pipeline:
    counts = divide_units(measured.model, measured.units, 2, None, schedule)
    return Pipeline(tuple(counts), 2, schedule, _MICROBATCHES, RECORDS)


def _paths(measured: Measured, pipeline: Pipeline) -> list[list[str]]:
    """The plan's connections over each border; none behind the last part."""
    connections = measured.size.connections
    return [sorted(each.path for each in connections if each.crosses(end - 1)) for end in pipeline.ends]


def test_ranks_carry_send_and_keep_the_bytes_of_the_plan(tmp_path: Path) -> None:
    cases = [(_hparams(model), _section(model, schedule)) for model, schedule in _CASES]
    ranks = list(zip(*run_gang(2, tmp_path, train_all, tmp_path / "work", cases), strict=True))
    for (model, schedule), found in zip(_CASES, ranks, strict=True):
        measured = _measure(model)
        pipeline = _pipeline(measured, schedule)
        paths = _paths(measured, pipeline)
        assert [rank.carried for rank in found] == [paths, paths], (model, schedule)
        assert any(paths)
        if model != "unet":
            # Its tensors are smaller than what ranks tell each other in a step.
            continue
        # Outputs go over the borders and gradients come back.
        sent = 2 * RECORDS * sum(border_bytes(measured.size, pipeline))
        assert sum(rank.written for rank in found) == pytest.approx(sent, rel=0.05), schedule
        for rank, memory in zip(found, stage_memory(measured.size, pipeline), strict=True):
            assert rank.peak == pytest.approx(memory.total, rel=0.15), (schedule, rank)
    # The table's row has the same numbers.
    place = Place(2, 2, slot_flops=math.inf, inside_rate=1, message_seconds=0)
    work = Work(RECORDS, stages=2, microbatches=_MICROBATCHES)
    [row] = [each for each in list_candidates(_measure("unet").size, work, place) if each.strategy == "pipeline"]
    [first, *_] = ranks
    assert row.memory is not None
    assert max(rank.peak for rank in first) == pytest.approx(row.memory.total, rel=0.15)
    assert sum(rank.written for rank in first) == pytest.approx(row.seconds, rel=0.05)
