"""Runs one rank of benchmarks/auto_choice.py: lets `parallelism: auto` choose, then trains all rows of its table.

The choice is made through gangline.pytorch.init, with the memory of this machine and under limits of the process that
some rows do not fit. A limit holds during the choice only. Then the rows train by name in random order, each on the
same records, in several passes. A step is counted from its first call of train_batch to that of the next step; the
longest of both ranks counts. Rank 0 prints one line of JSON. Run under the environment of torch.distributed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import statistics
import time
from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks.choice_judgment import AMPLE, usable_bytes
from benchmarks.sized import SizedTrial
from gangline import pytorch
from gangline.config.parallelism import parse_parallelism
from gangline.config.strategy_choice import StrategyChoice
from gangline.pytorch.fusion.agreement import agree_on_longest
from gangline.pytorch.plan.decision import settled_section
from gangline.pytorch.plan.step_time import SPARE_BYTES, SPARE_RATIO

# Steps that do not count: buckets, the optimizer's state and a pipeline's shapes are there after them.
_WARM_UP = 3


class ClockedTrial(SizedTrial):
    """Notes when each batch begins. A pipeline calls train_batch once for each microbatch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.begun: list[float] = []
        self._newest = -1

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx != self._newest:
            self._newest = batch_idx
            self.begun.append(time.perf_counter())
        return super().train_batch(batch, epoch_idx, batch_idx)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--recomputation", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hparams = {
        "global_batch_size": arguments.batch,
        "model": arguments.model,
        "optimizer": "adamw",
        "is_half": False,
    }
    auto = {"strategy": "auto", "activation_checkpointing": arguments.recomputation}
    records = {AMPLE: _choose(hparams, auto)}
    records |= {level: _choose_within(hparams, auto, usable) for level, usable in usable_bytes(records[AMPLE]).items()}
    seconds: dict[str, list[float]] = {}
    is_chief = False
    for number in range(arguments.passes):
        rows = [row for row in records[AMPLE].rows if not row.refusal]
        random.Random(f"{arguments.seed} {number}").shuffle(rows)
        for row in rows:
            with _opened(hparams, settled_section(row, parse_parallelism(auto))) as context:
                seconds.setdefault(row.name, []).extend(_train(context, arguments.steps))
                is_chief = context.distributed.is_chief
    if is_chief:
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        texts = {level: record.to_json() for level, record in records.items()}
        print(json.dumps({"records": texts, "seconds": medians}), flush=True)


def _opened(hparams: dict[str, Any], parallelism: Any) -> AbstractContextManager[pytorch.PyTorchTrialContext]:
    config = {"parallelism": parallelism, "scheduling_unit": 1000, "checkpoint_policy": "none"}
    return pytorch.init(hparams=hparams, exp_conf=config, trial_class=ClockedTrial, enable_tensorboard_logging=False)


def _choose(hparams: dict[str, Any], auto: dict[str, str]) -> StrategyChoice:
    with _opened(hparams, auto) as context:
        assert context.strategy_choice is not None
        return context.strategy_choice


def _choose_within(hparams: dict[str, Any], auto: dict[str, str], usable: float) -> StrategyChoice:
    """Returns the choice where a slot has so many usable bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (round((usable + SPARE_BYTES) / (1 - SPARE_RATIO)), hard))
    try:
        return _choose(hparams, auto)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _train(context: pytorch.PyTorchTrialContext, steps: int) -> list[float]:
    """Returns the seconds of each step."""
    trial = ClockedTrial(context)
    pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(_WARM_UP + steps + 1))
    begun = trial.begun[_WARM_UP:]
    own = [end - start for start, end in itertools.pairwise(begun)]
    return agree_on_longest(context.distributed, own)


if __name__ == "__main__":
    main()
