"""The peer: the same model and data in a plain DistributedDataParallel loop under torchrun, as in PyTorch's own
tutorial.

`start` prints when the first optimizer step ended; `overhead` takes turns with Gangline's trial.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from cnn import make_dataset, make_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from turn import Turn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["start", "overhead"])
    parser.add_argument("--batch-per-rank", type=int, default=32)
    parser.add_argument("--steps-per-block", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--turnstile", default="")
    parser.add_argument("--by-record", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    steps = 1 if arguments.mode == "start" else arguments.steps_per_block * arguments.blocks
    train(arguments, steps)
    dist.destroy_process_group()


def train(arguments: argparse.Namespace, steps: int) -> None:
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = make_dataset(64 * arguments.batch_per_rank, arguments.by_record)
    sampler: DistributedSampler[object] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=arguments.batch_per_rank, sampler=sampler, drop_last=True)
    turn = Turn(arguments.turnstile, "torchrun") if arguments.turnstile else None
    step, epoch = 0, 0
    total = torch.zeros(())
    while step < steps:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            if turn and step % arguments.steps_per_block == 0:
                turn.next_block()
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
            optimizer.step()
            total += loss.detach()
            step += 1
            if step == 1:
                print(f"first step at {time.time():.6f}", flush=True)
            if step % arguments.steps_per_block == 0:
                print(f"step {step} loss {total.item() / arguments.steps_per_block:.4f}", flush=True)
                total.zero_()
            if step == steps:
                break
        epoch += 1
    if turn:
        turn.next_block()


if __name__ == "__main__":
    main()
