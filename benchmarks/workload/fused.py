"""Runs one rank of a fusion benchmark: tunes an emulated model as a trial would, then compares its arms.

Prints one line of JSON on rank 0. Run by benchmarks.fusion under the environment of torch.distributed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from emulated import MODELS
from torch import nn

from gangline import pytorch
from gangline.pytorch.fusion import probe
from gangline.pytorch.fusion.agreement import agree_on_longest, is_same_everywhere
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, MIB, partition_by_caps
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.tuner import Tuner
from gangline.pytorch.training.fusion_opening import Fusion, Untuned, open_fusion

# Caps of the grid, in MiB.
GRID_MIB = (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50, 100, 200)
# Tuning that takes more steps counts as a failure.
_MOST_TUNING_STEPS = 80
# So many steps are left, in the tuner's view, that tuning is worth its time.
_TRIAL_STEPS = 20_000
_RECALL_STEPS = 4


class Bench:
    """Holds the model in training. step_seconds: of each optimizer step so far, on this rank."""

    def __init__(self, context: pytorch.PyTorchTrialContext, model: nn.Module) -> None:
        self.context = context
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        self.fusion: Fusion = Untuned()
        self.step_seconds: list[float] = []
        self._input = torch.ones(1)

    def step(self) -> float:
        began = time.perf_counter()
        self.context.backward(self.model(self._input))
        self.context.step_optimizer(self.optimizer)
        self.step_seconds.append(time.perf_counter() - began)
        self.fusion.on_step()
        return self.step_seconds[-1]

    def agreed(self, seconds: list[float]) -> list[float]:
        return agree_on_longest(self.context.distributed, seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", choices=["grid", "default"], default="grid")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    configuration = {"optimizations": {"auto_tune_tensor_fusion": True}}
    with pytorch.init(exp_conf=configuration) as context:
        bench = Bench(context, MODELS[arguments.model]())
        tuned = _tune(bench)
        recalled = _recall(bench)
        arms = _arms(bench, tuned["caps"], arguments.arms)
        seconds = _sweep(bench, arms, arguments.rounds, arguments.seed)
        if context.distributed.is_chief:
            print(json.dumps({"tuned": tuned, "recalled": recalled, "seconds": seconds, "caps": arms}), flush=True)


def _tune(bench: Bench) -> dict[str, Any]:
    """Trains until the tuner has decided."""
    switches: list[float] = []
    _time_switches(bench, switches)
    began = time.perf_counter()
    bench.fusion = open_fusion(bench.context, _TRIAL_STEPS, batch_size=1, saved={})
    while isinstance(bench.fusion, Tuner) and bench.fusion.record is None:
        bench.step()
        if len(bench.step_seconds) > _MOST_TUNING_STEPS:
            raise SystemExit("tuning did not end")
    wall = time.perf_counter() - began
    record = bench.fusion.record if isinstance(bench.fusion, Tuner) else None
    steps = bench.agreed(bench.step_seconds) if bench.step_seconds else []
    bench.fusion.close()
    return {
        "caps": list(record.bucket_bytes) if record else [],
        "alpha_seconds": record.alpha_seconds if record else 0.0,
        "bytes_per_second": record.bytes_per_second if record else 0.0,
        "probe_seconds": _PROBES,
        "wall_seconds": wall,
        "step_seconds": steps,
        "switch_seconds": bench.agreed(switches) if switches else [],
    }


_PROBES: list[float] = []
# The number of steps before each change of buckets.
_SWITCHED_AFTER: list[int] = []


def _time_switches(bench: Bench, switches: list[float]) -> None:
    """Records when each change of buckets happens, and how long it and each measurement of the link take."""
    rewrap = _timed(BucketedModel.rewrap, switches)

    def noted(*arguments: Any, **options: Any) -> Any:
        _SWITCHED_AFTER.append(len(bench.step_seconds))
        return rewrap(*arguments, **options)

    BucketedModel.rewrap = noted  # type: ignore[method-assign]  # to measure it
    probe.measure_link = _timed(probe.measure_link, _PROBES)


def _timed(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments, **options)
        seconds.append(time.perf_counter() - began)
        return result

    return timed


def _recall(bench: Bench) -> dict[str, Any]:
    """Starts again with the stored record, and reads the buckets that torch really made."""
    num_steps = len(bench.step_seconds)
    _SWITCHED_AFTER.clear()
    bench.fusion = open_fusion(bench.context, _TRIAL_STEPS, batch_size=1, saved={})
    record = bench.fusion.record if isinstance(bench.fusion, Tuner) else None
    for _ in range(_RECALL_STEPS):
        bench.step()
    bench.fusion.close()
    wrapper = bench.context.strategy._wrappers[0]  # type: ignore[attr-defined]  # what torch made of it
    sizes = wrapper._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return {
        "is_recalled": record is not None,
        "steps_before": max(_SWITCHED_AFTER, default=num_steps) - num_steps,
        "caps": list(record.bucket_bytes) if record else [],
        "buckets": sizes,
        "is_same_everywhere": is_same_everywhere(bench.context.distributed, sizes),
    }


def _arms(bench: Bench, tuned: list[int], which: str) -> dict[str, list[int]]:
    """Returns the caps of each arm by its name; caps that make the same partition are one arm."""
    arms = {"default": list(DEFAULT_CAPS), "tuned": tuned or list(DEFAULT_CAPS)}
    model = bench.context.strategy.bucketed()
    if which == "default" or model is None:
        return arms
    seen = {partition_by_caps(model.num_bytes[::-1], caps): name for name, caps in arms.items()}
    for cap in GRID_MIB:
        partition = partition_by_caps(model.num_bytes[::-1], [int(cap * MIB)])
        if cap == 1 or partition not in seen:
            arms[f"{cap:g}"] = [int(cap * MIB)]
            seen[partition] = f"{cap:g}"
    return arms


def _sweep(bench: Bench, arms: dict[str, list[int]], rounds: int, seed: int) -> dict[str, list[list[float]]]:
    """Measures rounds in random order, in each one turn for each arm: one step is dropped, two are kept."""
    rng = random.Random(seed)
    model = bench.context.strategy.bucketed()
    seconds: dict[str, list[list[float]]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name in rng.sample(list(arms), len(arms)):
            if model is not None:
                model.rewrap(tuple(arms[name]))
            own = [bench.step() for _ in range(3)][1:]
            seconds[name].append(bench.agreed(own))
    return seconds


if __name__ == "__main__":
    main()
