"""Trains a transformer of eight blocks for benchmarks/pipeline.py, in turns with the same model in other programs.

The first argument is the side. `gangline` is a pipeline of the trainer's, `by_hand` the same with
torch.distributed.pipelining alone. `alone` is one process that accumulates the gradients of the same microbatches,
while the other rank waits; with `both_alone` both ranks do so at the same time, each for itself. `transfer` prints the
seconds in which one step's activations and gradients are sent, and takes no turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from turn import Turn

from gangline import pytorch

VOCABULARY, HEADS, LENGTH, BLOCKS = 256, 6, 64, 8
BATCH, TRANSFERS = 32, 12
# More than any run takes: the benchmark ends the programs.
MOST_STEPS = 100_000


class Block(nn.TransformerEncoderLayer):
    def __init__(self, width: int) -> None:
        super().__init__(width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(BLOCKS))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def texts() -> TensorDataset:
    return TensorDataset(torch.randint(0, VOCABULARY, (BATCH * 64, LENGTH), generator=torch.Generator().manual_seed(1)))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class StagedTrial(pytorch.PyTorchTrial):
    """The user's code of the side `gangline`."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(Model(context.get_hparam("width")))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.turn = Turn(context.get_hparam("turnstile"), "gangline")
        self.newest = -1

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(texts(), batch_size=self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        # It is called once for each microbatch.
        if batch_idx != self.newest and batch_idx % self.context.get_hparam("steps_per_block") == 0:
            self.turn.next_block()
        self.newest = batch_idx
        (tokens,) = batch
        loss = loss_of(self.model(tokens), tokens)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


def by_gangline(arguments: argparse.Namespace) -> None:
    config = {
        "parallelism": {"strategy": "pipeline", "microbatches": arguments.microbatches},
        "checkpoint_policy": "none",
    }
    hparams = {
        "global_batch_size": BATCH,
        "width": arguments.width,
        "turnstile": arguments.turnstile,
        "steps_per_block": arguments.steps_per_block,
    }
    with pytorch.init(hparams=hparams, exp_conf=config) as context:
        pytorch.Trainer(StagedTrial(context), context).fit(max_length=pytorch.Batch(MOST_STEPS))


def by_hand(arguments: argparse.Namespace) -> None:
    rank, half = dist.get_rank(), BLOCKS // 2
    model = Model(arguments.width)
    parts = [model.tokens, *model.blocks[:half]] if rank == 0 else [*model.blocks[half:], model.head]
    part = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, arguments.microbatches, loss_fn=loss_of)
    for tokens in batches(arguments):
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=[], return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()


def alone(arguments: argparse.Namespace) -> None:
    model = Model(arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for whole in batches(arguments):
        if arguments.side == "alone" and dist.get_rank() > 0:
            continue
        for tokens in whole.chunk(arguments.microbatches):
            (loss_of(model(tokens), tokens) / arguments.microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()


def transfer(arguments: argparse.Namespace) -> None:
    """Sends what one microbatch sends in both directions, as often as a step does."""
    hidden = torch.zeros(BATCH // arguments.microbatches, LENGTH, arguments.width)
    seconds = []
    for _ in range(TRANSFERS):
        start = time.perf_counter()
        for _ in range(arguments.microbatches):
            if dist.get_rank() == 0:
                dist.send(hidden, 1)
                dist.recv(hidden, 1)
            else:
                dist.recv(hidden, 0)
                dist.send(hidden, 0)
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(f"median {statistics.median(seconds):.6f}", flush=True)


def batches(arguments: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Yields batches until the benchmark ends the program, in turns with the other sides."""
    turn = Turn(arguments.turnstile, arguments.side)
    loader = DataLoader(texts(), batch_size=BATCH)
    epochs = (batch for _ in itertools.count() for batch in loader)
    for step, (tokens,) in enumerate(epochs):
        if step % arguments.steps_per_block == 0:
            turn.next_block()
        yield tokens


SIDES: dict[str, Callable[[argparse.Namespace], None]] = {
    "gangline": by_gangline,
    "by_hand": by_hand,
    "alone": alone,
    "both_alone": alone,
    "transfer": transfer,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps-per-block", type=int, default=0)
    parser.add_argument("--turnstile", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    SIDES[arguments.side](arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
