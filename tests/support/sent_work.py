"""Trains a model under each strategy on the ranks of a gang and counts what a rank sends in a step: the bytes that the
process writes, to sockets, and the bytes in collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.sized import SizedTrial, kept_bytes
from gangline import pytorch
from tests.support.folder_work import in_folder

HPARAMS: dict[str, Any] = {"global_batch_size": 8, "model": "recommender", "optimizer": "adamw", "is_half": False}
_STEPS = 3
# How often a ring sends the bytes of a collective, in parts (n - 1) / n, as a mean over the ranks.
_TIMES = {"allreduce_": 2, "_allgather_base_": 1, "_reduce_scatter_base_": 1, "broadcast_": 1, "reduce_": 1}


@dataclass(frozen=True)
class Sent:
    """Bytes of one rank."""

    written: float  # bytes that the process writes in a step
    in_rings: float  # bytes of the step's collectives, if rings carry them
    kept: dict[str, int]  # as benchmarks.sized.kept_bytes counts them


@in_folder
def train_all(folder: Path, cases: list[Any]) -> list[Sent]:
    return [_train(case) for case in cases]


def _train(parallelism: Any) -> Sent:
    config = {"parallelism": parallelism, "scheduling_unit": 1, "checkpoint_policy": "none"}
    counter, meter, kept = _Counter(), _Meter(), {}
    meter.counter = counter
    with pytorch.init(hparams=HPARAMS, exp_conf=config) as context:
        trial = SizedTrial(context)
        trial.callback = meter
        trial.optimizer.register_step_post_hook(lambda *_: kept.update(kept_bytes(trial.model, trial.optimizer)))
        with counter:
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(_STEPS))
    return Sent(_median_step(meter.written), _median_step(meter.in_rings), kept)


def _median_step(totals: list[float]) -> float:
    return median(after - before for before, after in pairwise(totals))


@dataclass
class _Meter(pytorch.PyTorchCallback):
    """Notes the sums at the end of each step."""

    written: list[float] = field(default_factory=list)
    in_rings: list[float] = field(default_factory=list)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        lines = Path("/proc/self/io").read_text().splitlines()
        self.written.append(float(dict(line.split(": ") for line in lines)["wchar"]))
        self.in_rings.append(self.counter.sent)

    counter: _Counter = field(init=False)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Sums the bytes of collectives, without messages between two ranks, which are those of a pipeline's schedule."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if func.namespace == "c10d" and name in _TIMES:
            group = next(value for value in args if isinstance(value, torch.ScriptObject))
            ranks = dist.ProcessGroup.unbox(group).size()
            # The whole tensor is the output of a gathering and the input of a reduction of parts.
            whole = args[1] if name == "_reduce_scatter_base_" else args[0]
            count = sum(value.nbytes for value in tree_leaves(whole) if isinstance(value, torch.Tensor))
            self.sent += _TIMES[name] * (ranks - 1) / ranks * count
        return func(*args, **(kwargs or {}))
