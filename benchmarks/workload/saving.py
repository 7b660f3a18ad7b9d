"""Two ranks that train and save, for benchmarks/checkpoint.py, run by torchrun.

Argument: a JSON mapping with folder, strategy, megabytes of state (parameters and Adam's two moments), runs, and steps.
The chief prints one JSON line for each save: way, seconds of the call, seconds by which the steps of a block took
longer than those of the block before, and seconds until the checkpoint was complete.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_with_torch

from gangline import pytorch
from gangline.pytorch.checkpoint.capture import capture
from gangline.pytorch.checkpoint.content import metadata_of
from gangline.pytorch.checkpoint.saver import Saver

_WIDTH = 512
_BATCH = 16
# In fp32: the parameter and Adam's two moments, 4 bytes each.
_BYTES_A_PARAMETER = 12


class Bench:
    """Holds one model of the wanted size, with the ways to save it."""

    def __init__(self, context: pytorch.PyTorchTrialContext, state_mb: int) -> None:
        self.context = context
        layers = max(2, round(state_mb * 2**20 / _BYTES_A_PARAMETER / (_WIDTH * _WIDTH)))
        parts = [layer for _ in range(layers) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())]
        self.model = context.wrap_model(nn.Sequential(*parts))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-4))
        self.records = torch.randn(_BATCH, _WIDTH)
        self.own = Saver(context.core.checkpoint, context.distributed)
        self.group = dist.new_group(backend="gloo")
        self.pending: Any = None

    def step(self) -> None:
        self.model(self.records).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def is_saving(self) -> bool:
        self.own.poll()
        if self.pending is not None and self.pending.done():
            self.pending.result()
            self.pending = None
        return self.pending is not None or self.own.under_way is not None

    def save_here(self, folder: Path) -> None:
        captured = capture(self.context, {}, {})
        self.own.save(captured, 0, metadata_of(self.context, 0))

    def save_here_and_wait(self, folder: Path) -> None:
        self.save_here(folder)
        self.own.wait()

    def save_with_torch(self, folder: Path) -> None:
        save_with_torch(self._state(), storage_writer=FileSystemWriter(folder), process_group=self.group)

    def save_with_torch_asynchronously(self, folder: Path) -> None:
        self.pending = async_save(self._state(), storage_writer=FileSystemWriter(folder), process_group=self.group)

    def save_on_chief(self, folder: Path) -> None:
        """Saves as a plain script does: the other ranks wait for the chief."""
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
            with (folder / "state.pth").open("wb") as file:
                torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
                os.fsync(file.fileno())
        dist.barrier()

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    os.chdir(wanted["folder"])
    with pytorch.init(hparams={}, exp_conf={"parallelism": wanted["strategy"]}) as context:
        bench = Bench(context, wanted["state_mb"])
        ways: dict[str, Callable[[Path], None]] = {
            "gangline, in the background": bench.save_here,
            "gangline, waiting": bench.save_here_and_wait,
            "torch async_save": bench.save_with_torch_asynchronously,
            "torch dcp.save": bench.save_with_torch,
        }
        if wanted["strategy"] == "ddp":
            ways["torch.save on the chief"] = bench.save_on_chief
        for _ in range(3):
            bench.step()
        for run in range(wanted["runs"] + 1):
            for way, save in ways.items():
                measurement = measure(bench, save, wanted["steps"])
                # The first round creates files, buffers and groups that later rounds reuse.
                if dist.get_rank() == 0 and run:
                    print(json.dumps({"way": way, **measurement}), flush=True)
    dist.destroy_process_group()


def measure(bench: Bench, save: Callable[[Path], None], steps: int) -> dict[str, float]:
    """Measures a block of steps without a save, then one that begins with a save and lasts at least as long as the
    save."""
    folder = Path("other")
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        bench.step()
    plain = (time.perf_counter() - began) / steps
    dist.barrier()
    began = time.perf_counter()
    save(folder)
    called = time.perf_counter() - began
    complete, done = 0.0, 0
    while done < steps or not complete:
        bench.step()
        done += 1
        # All ranks must leave the loop at the same step.
        is_saving = torch.tensor([int(bench.is_saving())])
        dist.all_reduce(is_saving, op=dist.ReduceOp.MAX)
        if not complete and not int(is_saving):
            complete = time.perf_counter() - began
    total = time.perf_counter() - began
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree("checkpoints", ignore_errors=True)
    return {"call": called, "slower": total - done * plain, "complete": complete, "step": plain}


if __name__ == "__main__":
    main()
