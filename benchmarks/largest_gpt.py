"""Finds the largest GPT that trains on one GPU: with plain PyTorch, with its checkpoints by hand, and under
`parallelism: auto`.

The model has a fixed width, and as many blocks as fit. It trains in bf16 autocast with AdamW; all sides have the same
model, batch, optimizer and allocator. `plain` is a loop as in PyTorch's tutorial. `by hand` calls torch's checkpoint
for each block, which a user writes into the model. `auto` is the plain model in our trainer. An attempt trains a few
steps in a process of its own; it fails where memory runs out, and under `auto` where nothing fits with the part of the
memory that `auto` leaves free. The largest number of blocks is searched by bisection in the first run; later runs try
this number and the next one again. For `auto` the predicted peak and step time stand beside the measured ones. Run it
with `python -m benchmarks.largest_gpt`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from benchmarks.gpu_model import GPT2_WORDS, Gpt
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from gangline import pytorch
from gangline.config.strategy_choice import CandidateRow, table_lines
from gangline.errors import GanglineError
from gangline.launch.failure import lacked_memory

STEPS = 4
SIDES = ("plain", "by hand", "auto")
# Bytes of a parameter with its gradient and AdamW's state: no side trains more parameters than fit by this.
LEAST_BYTES = 16
ATTEMPT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Size:
    """One model with one batch."""

    width: int
    blocks: int
    batch: int
    length: int = 1024  # tokens of a record
    words: int = GPT2_WORDS

    @property
    def parameters(self) -> int:
        with torch.device("meta"):
            return sum(value.numel() for value in self.make().parameters())

    def make(self) -> Gpt:
        return Gpt(self.words, self.length, self.width, self.blocks, heads=max(1, self.width // 128))

    def records(self) -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(0, self.words, (self.batch, self.length + 1), generator=torch.Generator().manual_seed(0))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt did."""

    problem: str = ""  # why it trained no step; empty if it did
    peak: int = 0  # bytes of all tensors on the GPU at once
    seconds: float = 0.0  # time of a step
    row: CandidateRow | None = None  # the row that `auto` chose
    table: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 32])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("largest_gpt: torch sees no GPU here; run this benchmark on a machine with one")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    print(describe_machine())
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.largest_gpt"])
    memory = _in_process(processes, _gpu_bytes)
    for batch in arguments.batches:
        most = most_blocks(arguments.width, memory)
        for side in arguments.sides:
            size = Size(arguments.width, 0, batch)
            print_side(side, size, search(partial(_attempt, processes, side, size), most, arguments.runs))


def _attempt(processes: Any, side: str, size: Size, blocks: int) -> Outcome:
    found: Outcome = _in_process(processes, partial(try_side, side, replace(size, blocks=blocks)))
    print(f"    {side}, batch {size.batch}, {blocks} blocks: {_text_of(found)}", flush=True)
    return found


def most_blocks(width: int, memory: int) -> int:
    """Returns the most blocks whose parameters, gradients and optimizer's state fit into so many bytes."""
    none, one = (Size(width, blocks, 1).parameters for blocks in (0, 1))
    return (memory // LEAST_BYTES - none) // (one - none)


def search(attempt: Callable[[int], Outcome], most: int, runs: int) -> tuple[int, list[Outcome]]:
    """Returns the largest number of blocks that trains, with its outcomes, one for each run. Raises AssertionError
    where a later run finds another number."""
    trained: dict[int, Outcome] = {}
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        found = attempt(middle)
        if found.problem:
            high = middle
        else:
            low, trained[middle] = middle, found
    outcomes = [trained[low]] if low else []
    for _ in range(runs - 1 if low else 0):
        again, more = attempt(low), attempt(low + 1)
        if again.problem or not more.problem:
            raise AssertionError(f"a run trains another number of blocks than {low}: {again}, {more}")
        outcomes.append(again)
    return low, outcomes


def print_side(side: str, size: Size, found: tuple[int, Sequence[Outcome]]) -> None:
    blocks, outcomes = found
    numel = replace(size, blocks=blocks).parameters
    seconds = [outcome.seconds for outcome in outcomes]
    spread = f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})" if seconds else "-"
    peak = max((outcome.peak for outcome in outcomes), default=0)
    print(
        f"{side:8} batch {size.batch:3} x {size.length}: {blocks:3} blocks of width {size.width}, "
        f"{numel / 1e9:.2f}e9 parameters, peak {peak / 1e9:.2f} GB, step {spread}, {len(outcomes)} runs"
    )
    for outcome in outcomes[:1]:
        if outcome.row is not None:
            predicted = outcome.row.bytes["total"]
            print(
                f"  chose {outcome.row.name}: predicted peak {predicted / 1e9:.2f} GB, {predicted / peak - 1:+.1%}; "
                f"predicted step {outcome.row.step_seconds or 0:.3f} s"
            )
            for line in outcome.table:
                print(f"    {line}")
    print(flush=True)


def try_side(side: str, size: Size) -> Outcome:
    """Trains a few steps in this process."""
    try:
        return _train_ours(size) if side == "auto" else _train_plain(size, by_hand=side == "by hand")
    except RuntimeError as error:
        if not lacked_memory(error):
            raise
        return Outcome("out of memory")
    except GanglineError as error:
        if error.code != "parallelism.auto":
            raise
        return Outcome(error.message)


class Recomputed(nn.Module):
    """A block as a user changes it to recompute it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
        return out


def _train_plain(size: Size, *, by_hand: bool) -> Outcome:
    device = torch.device("cuda", 0)
    with device:
        model = size.make()
    if by_hand:
        model.blocks = nn.ModuleList(map(Recomputed, model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text, targets = (part.to(device) for part in size.records())
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(text).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return Outcome("", torch.cuda.max_memory_allocated(), min(seconds[1:]))


class AttemptIsOver(Exception):
    """Ends a training that is only measured, without a validation and a checkpoint."""


class GptTrial(pytorch.PyTorchTrial):
    """Trains the plain model. hyperparameters: the fields of Size."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.size = Size(**{name: int(context.get_hparam(name)) for name in ("width", "blocks", "batch")})
        with context.device:
            model = self.size.make()
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True))
        self.began: list[float] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(*self.size.records()), batch_size=self.size.batch)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if self.context.device.type == "cuda":
            torch.cuda.synchronize()
        self.began.append(time.perf_counter())
        if batch_idx == STEPS:
            raise AttemptIsOver
        text, targets = batch
        loss = functional.cross_entropy(self.model(text).flatten(0, 1), targets.flatten())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        raise AssertionError("a training that is only measured does not come to its validation")


def _train_ours(size: Size) -> Outcome:
    hparams = {"global_batch_size": size.batch, "width": size.width, "blocks": size.blocks, "batch": size.batch}
    configuration = {
        "parallelism": "auto",
        "optimizations": {"mixed_precision": "bf16"},
        "scheduling_unit": 1,
        "checkpoint_policy": "none",
    }
    with (
        tempfile.TemporaryDirectory(prefix="gl-largest-") as folder,
        chdir(folder),
        pytorch.init(hparams=hparams, exp_conf=configuration, trial_class=GptTrial) as context,
    ):
        if context.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trial = GptTrial(context)
        with suppress(AttemptIsOver):
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(STEPS + 1))
        record = context.strategy_choice
        assert record is not None
        peak = torch.cuda.max_memory_allocated() if context.device.type == "cuda" else 0
        steps = [after - before for before, after in pairwise(trial.began[1:])]
        return Outcome("", peak, min(steps), record.chosen, tuple(table_lines(record)))


def _gpu_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).total_memory)


def _text_of(found: Outcome) -> str:
    return found.problem or f"peak {found.peak / 1e9:.2f} GB, step {found.seconds:.3f} s"


def _in_process(processes: Any, call: Any) -> Any:
    """Calls it in a new process and returns its result. Raises what it raises."""
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_send_result, args=(sender, call))
    process.start()
    sender.close()
    try:
        is_ready = receiver.poll(ATTEMPT_SECONDS)
        result = receiver.recv() if is_ready else TimeoutError(f"an attempt took more than {ATTEMPT_SECONDS} s")
    except EOFError:
        result = RuntimeError("the process of an attempt died")
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _send_result(sender: Any, call: Any) -> None:
    try:
        sender.send(call())
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    run_benchmark(main)
