"""Mixed precision on two ranks: all ranks skip a step or none does, whichever rank owns the gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rank import Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config

# The second rank's loss overflows fp16 once, after the scaler has come down from its first scale.
_OVERFLOWING = LINEAR.replace(
    "        self.context.backward(loss)\n",
    "        is_last = self.context.distributed.rank == self.context.distributed.size - 1\n"
    "        self.context.backward(loss * (1e30 if is_last and batch_idx == 6 else 1.0))\n"
    "        print('scale', self.context.scalers[0].get_scale(), flush=True)\n",
)


def _losses(
    directory: Path, code: str, kind: str, strategy: str = "ddp", size: int = 2
) -> tuple[dict[int, float], list[str]]:
    config = linear_config({"batches": 10}, optimizations={"mixed_precision": kind}, parallelism=strategy)
    running, codes = run_trial(directory, Trial({"model_def.py": code}, config, {"global_batch_size": 8}, size))
    assert codes == [0] * size, running.output(0)
    outputs = [running.output(rank).splitlines() for rank in range(size)]
    scales = [" ".join(line for line in lines if line.startswith("scale")) for lines in outputs]
    return running.runner.metric("training", "loss"), scales


@pytest.mark.parametrize(("kind", "tolerance"), [("bf16", 0.1), ("fp16", 0.4)])
def test_losses_are_near_those_of_full_precision(tmp_path: Path, kind: str, tolerance: float) -> None:
    """fp16 leaves its first steps out, until it has found its scale."""
    full, _ = _losses(tmp_path / "full", LINEAR, "O0")
    half, _ = _losses(tmp_path / "half", LINEAR, kind)
    assert half[1] == pytest.approx(full[1], rel=0.03)
    assert sum(half.values()) == pytest.approx(sum(full.values()), rel=tolerance)


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_step_that_overflows_on_one_rank_is_left_out_on_all(tmp_path: Path, strategy: str) -> None:
    losses, scales = _losses(tmp_path, _OVERFLOWING, "fp16", strategy)
    assert scales[0] == scales[1]
    values = [float(word) for word in scales[0].split() if word != "scale"]
    assert values[7] == values[6] / 2
    assert all(loss < 100 for loss in losses.values())
