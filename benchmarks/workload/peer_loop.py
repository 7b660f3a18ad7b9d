"""The loop of bare.py as Accelerate's and Lightning Fabric's own guides write it, run by torchrun on every rank.

Both get the same options of DistributedDataParallel as the bare loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cnn import make_dataset, make_model
from torch import nn
from torch.utils.data import DataLoader
from turn import Turn

# Model, optimizer, loader, and the replacement of loss.backward().
Prepared = tuple[Any, Any, Any, Callable[[torch.Tensor], Any]]


def prepare_with_accelerate(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> Prepared:
    from accelerate import Accelerator  # noqa: PLC0415  only the chosen peer is imported
    from accelerate.utils import DistributedDataParallelKwargs  # noqa: PLC0415  see above

    handlers = [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    return *accelerator.prepare(model, optimizer, loader), accelerator.backward


def prepare_with_fabric(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> Prepared:
    from lightning_fabric import Fabric  # noqa: PLC0415  only the chosen peer is imported
    from lightning_fabric.strategies import DDPStrategy  # noqa: PLC0415  see above

    strategy = DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    return *fabric.setup(model, optimizer), fabric.setup_dataloaders(loader), fabric.backward


PREPARE = {"accelerate": prepare_with_accelerate, "fabric": prepare_with_fabric}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PREPARE)
    parser.add_argument("--turnstile", required=True)
    parser.add_argument("--batch-per-rank", type=int, required=True)
    parser.add_argument("--steps-per-block", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--by-record", action="store_true")
    train(parser.parse_args())
    dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    bare = make_model()
    sgd = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9)
    dataset = make_dataset(64 * arguments.batch_per_rank, arguments.by_record)
    records = DataLoader(dataset, batch_size=arguments.batch_per_rank, shuffle=True, drop_last=True)
    model, optimizer, loader, backward = PREPARE[arguments.peer](bare, sgd, records)
    assert dist.get_world_size() == 2
    turn = Turn(arguments.turnstile, arguments.peer)
    step, steps = 0, arguments.steps_per_block * arguments.blocks
    total = torch.zeros(())
    while step < steps:
        for images, labels in loader:
            if step % arguments.steps_per_block == 0:
                turn.next_block()
            assert len(images) == arguments.batch_per_rank
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            total += loss.detach()
            step += 1
            if step % arguments.steps_per_block == 0:
                print(f"step {step} loss {total.item() / arguments.steps_per_block:.4f}", flush=True)
                total.zero_()


if __name__ == "__main__":
    main()
