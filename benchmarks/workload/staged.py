"""Trains a transformer of eight blocks for benchmarks/pipeline.py, and prints the median seconds of a step.

Checkpoints go to the current folder. Arguments: the side and the number of microbatches. `gangline` is a pipeline of
the trainer's, `by_hand` the same with torch.distributed.pipelining alone, and `alone` one process that accumulates the
gradients of the same microbatches. `transfer` measures the sends of one step's activations and gradients.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch

VOCABULARY, WIDTH, HEADS, LENGTH, BLOCKS = 256, 192, 4, 64, 8
BATCH, WARM_UP, STEPS = 32, 3, 12


class Block(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def texts() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH * 4, LENGTH), generator=torch.Generator().manual_seed(1))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class StagedTrial(pytorch.PyTorchTrial):
    """The user's code of the side `gangline`."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(Model())
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.times: list[float] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(texts()), batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        (tokens,) = batch
        loss = loss_of(self.model(tokens), tokens)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.times.append(time.perf_counter())
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


def by_gangline(microbatches: int) -> list[float]:
    """Returns the seconds of each step. train_batch notes the time at the end of each call, the last of which steps."""
    config = {
        "parallelism": {"strategy": "pipeline", "microbatches": microbatches},
        "scheduling_unit": WARM_UP + STEPS,
        "checkpoint_policy": "none",
    }
    with pytorch.init(hparams={"global_batch_size": BATCH}, exp_conf=config) as context:
        trial = StagedTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(WARM_UP + STEPS))
    # The first rank's calls end in the model but for the last one of each step.
    ends = trial.times[:: 1 if context.distributed.rank == 0 else -microbatches]
    ends = ends if context.distributed.rank == 0 else ends[::-1]
    return [after - before for before, after in itertools.pairwise(ends)]


def by_hand(microbatches: int) -> list[float]:
    rank, half = dist.get_rank(), BLOCKS // 2
    model = Model()
    parts = [model.tokens, *model.blocks[:half]] if rank == 0 else [*model.blocks[half:], model.head]
    part = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=loss_of)
    data = texts()

    def step(number: int) -> None:
        first = number % 4 * BATCH
        tokens = data[first : first + BATCH]
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=[], return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step)


def alone(microbatches: int) -> list[float]:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = texts()

    def step(number: int) -> None:
        first = number % 4 * BATCH
        for tokens in data[first : first + BATCH].chunk(microbatches):
            (loss_of(model(tokens), tokens) / microbatches).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad()

    return timed(step)


def transfer(microbatches: int) -> list[float]:
    """Sends what one microbatch sends in both directions, as often as a step does."""
    hidden = torch.zeros(BATCH // microbatches, LENGTH, WIDTH)

    def step(number: int) -> None:
        for _ in range(microbatches):
            if dist.get_rank() == 0:
                dist.send(hidden, 1)
                dist.recv(hidden, 1)
            else:
                dist.recv(hidden, 0)
                dist.send(hidden, 0)

    return timed(step)


def timed(step: Callable[[int], None]) -> list[float]:
    ends = []
    for number in range(WARM_UP + STEPS):
        step(number)
        ends.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(ends)]


SIDES = {"gangline": by_gangline, "by_hand": by_hand, "alone": alone, "transfer": transfer}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    seconds = SIDES[sys.argv[1]](int(sys.argv[2]))[WARM_UP:]
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"median {statistics.median(seconds):.6f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
