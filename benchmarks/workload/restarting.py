"""The peer of benchmarks/recovery.py: the plain loop of bare.py with its own checkpoint, run by `torchrun
--max-restarts`.

The chief saves with torch.save to a file beside the old checkpoint and renames it; all ranks begin with the checkpoint
that exists.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from cnn import make_dataset, make_model
from footprint import Footprint
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCHES_PER_EPOCH = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batch-per-rank", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    footprint = Footprint(str(arguments.folder), dist.get_rank())
    bare = make_model()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9)
    saved = arguments.folder / "checkpoint.pth"
    done = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["batches"]
    model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
    dataset = make_dataset(BATCHES_PER_EPOCH * arguments.batch_per_rank * dist.get_world_size())
    sampler: DistributedSampler[object] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=arguments.batch_per_rank, sampler=sampler, drop_last=True)
    while done < arguments.batches:
        sampler.set_epoch(done // BATCHES_PER_EPOCH)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
            optimizer.step()
            done += 1
            footprint.leave(done)
            if done % arguments.save_every == 0 and dist.get_rank() == 0:
                save(saved, {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "batches": done})


def save(path: Path, state: dict[str, object]) -> None:
    # A rename is atomic, so a kill leaves the old checkpoint or the new one.
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


if __name__ == "__main__":
    main()
