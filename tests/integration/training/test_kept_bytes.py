"""Ranks keep the bytes that the plan's formulas say, and each storage is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sized import SizedTrial, train_all
from gangline.pytorch.plan.measure import measure_trial
from gangline.pytorch.plan.rule import Place, Work, list_candidates
from tests.support.gang import run_gang

_STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "pipeline")


def test_counted_bytes_are_those_of_the_formulas(tmp_path: Path) -> None:
    hparams = {"global_batch_size": 4, "model": "recommender", "optimizer": "adamw", "is_half": False}
    found = run_gang(2, tmp_path, train_all, [{"parallelism": name, "hparams": hparams} for name in _STRATEGIES])
    measured = measure_trial(SizedTrial, hparams, {}, 2, None, is_gpu=False)
    rows = {row.strategy: row for row in list_candidates(measured.size, Work(4), Place(2, 2)) if row.memory}
    for strategy, ranks in zip(_STRATEGIES, zip(*found, strict=True), strict=True):
        memory = rows[strategy].memory
        assert memory is not None
        for part in ("parameters", "gradients", "optimizer"):
            most = max(rank[part] for rank in ranks)
            assert most == pytest.approx(getattr(memory, part), rel=0.05), (strategy, part)
