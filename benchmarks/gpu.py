"""Compares our trainer with a bare PyTorch loop on one GPU: tokens and images a second, with torch.compile and without.

The models have the sizes of GPT-2 small and ResNet-50, in bf16 autocast; both sides run under DistributedDataParallel
over NCCL in a group of one. Both train in one process and take turns, a block of steps each, so that they run on the
same GPU at the same temperature. The number of pairs of blocks is the one that brings the 95 % interval of the ratio
within 0.5 %, at most --pairs. Records are on the GPU, because loading them is not measured; loaders return their
numbers. Run it with `python -m benchmarks.gpu`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu_model import GPT2_WORDS, IMAGE_CLASSES, Gpt, ResNet
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import Ratio, paired_ratio, summarise
from gangline import pytorch
from gangline.config.optimization import parse_optimizations
from gangline.core.context import alone
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.trial.setting import TrialSetting

# Our rate over the peer's must not fall below this.
BAR = 0.99
# Half the width of the 95 % interval at which a comparison ends.
HALF_WIDTH = 0.005
WARM_UP_PAIRS = 2
FEWEST_PAIRS = 20
# The numbers of an epoch refer to these records, each many times.
RECORDS_ON_GPU = 512
RECORDS_OF_EPOCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Job:
    """Describes the training of both sides."""

    name: str
    unit: str
    units_per_record: int  # tokens or images
    batch_size: int
    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    make_records: Callable[[torch.device], tuple[torch.Tensor, torch.Tensor]]  # returns inputs and targets on a device
    steps_per_block: int = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--jobs", nargs="+", choices=[job.name for job in JOBS], default=[job.name for job in JOBS])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu: torch sees no GPU here; run this benchmark on a machine with one")
    print(describe_machine())
    device = torch.device("cuda", 0)
    print(f"GPU: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}")
    for job in JOBS:
        for backend in (None, "inductor"):
            if job.name in arguments.jobs:
                print_duel(job, backend, run_duel(job, device, backend, arguments.pairs))


class BareLoop:
    """Implements the peer as in PyTorch's own tutorial."""

    def __init__(self, job: Job, device: torch.device, backend: str | None) -> None:
        self._job, self._device = job, device
        bare = _make_model(job, device, backend)
        self.model = DistributedDataParallel(bare, gradient_as_bucket_view=True)
        self._optimizer = job.make_optimizer(bare)
        self._inputs, self._targets = job.make_records(device)
        self._batches = self._endless()
        self._total = torch.zeros((), device=device)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            numbers = next(self._batches).to(self._device)
            with torch.autocast(self._device.type, torch.bfloat16):
                loss = _loss_of(self.model(self._inputs[numbers]), self._targets[numbers])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
            self._optimizer.step()
            self._total += loss.detach()

    def _endless(self) -> Iterator[torch.Tensor]:
        loader = DataLoader(_make_numbers(), batch_size=self._job.batch_size, shuffle=True, drop_last=True)
        while True:
            for (numbers,) in loader:
                yield numbers


class Duel:
    """Collects the seconds of each side's blocks. Our trainer calls `on_block` where one block ends and the next
    begins."""

    def __init__(self, theirs: BareLoop, device: torch.device, steps: int, most_pairs: int) -> None:
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self._loop, self._device, self._steps, self._most_pairs = theirs, device, steps, most_pairs
        self._pairs = 0
        self._began: float | None = None

    @property
    def ratio(self) -> Ratio:
        """Returns the ratio of rates, ours over theirs: above 1 where ours is faster."""
        return paired_ratio(self.theirs, self.ours)

    def on_block(self) -> None:
        """Ends our block and runs the peer's. Raises DuelIsOver when there are enough pairs."""
        now = self._now()
        if self._began is not None:
            self.ours.append(now - self._began)
            self._pairs += 1
            if self._pairs == WARM_UP_PAIRS:
                self.ours.clear()
                self.theirs.clear()
            elif self._is_enough():
                raise DuelIsOver
        began = self._now()
        self._loop.run(self._steps)
        self._began = self._now()
        self.theirs.append(self._began - began)

    def _is_enough(self) -> bool:
        pairs = self._pairs - WARM_UP_PAIRS
        return pairs >= self._most_pairs or (pairs >= FEWEST_PAIRS and self.ratio.half_width <= HALF_WIDTH)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class DuelIsOver(Exception):
    """Ends a training that is only measured, without a checkpoint."""


class DuelTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, job: Job, backend: str | None, duel: Duel) -> None:
        self.context = context
        self._job, self._duel = job, duel
        self.model = context.wrap_model(_make_model(job, context.device, backend))
        self.optimizer = context.wrap_optimizer(job.make_optimizer(self.model))
        self._inputs, self._targets = job.make_records(context.device)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_make_numbers(), batch_size=self._job.batch_size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_make_numbers(), batch_size=self._job.batch_size)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx % self._job.steps_per_block == 0:
            self._duel.on_block()
        (numbers,) = batch
        loss = _loss_of(self.model(self._inputs[numbers]), self._targets[numbers])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        raise AssertionError("a training that is only measured does not come to its validation")


def run_duel(job: Job, device: torch.device, backend: str | None, most_pairs: int) -> Duel:
    """Runs one comparison. backend: of torch.compile; None compiles nothing. Files of the training go to a temporary
    folder."""
    optimizations = parse_optimizations({"mixed_precision": "bf16"})
    with _group_of_one(device), _temporary_folder():
        duel = Duel(BareLoop(job, device, backend), device, job.steps_per_block, most_pairs)
        strategy = DdpStrategy(device, {}, Exchange(optimizations))
        context = pytorch.PyTorchTrialContext(alone(), TrialSetting(optimizations=optimizations), strategy, device)
        trial = DuelTrial(context, job, backend, duel)
        blocks = WARM_UP_PAIRS + most_pairs + 1
        try:
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(blocks * job.steps_per_block))
        except DuelIsOver:
            return duel
        finally:
            context.close_writer()
    raise AssertionError("the trainer ended before the last block")


def print_duel(job: Job, backend: str | None, duel: Duel) -> None:
    units = job.units_per_record * job.batch_size * job.steps_per_block
    ours, theirs = (units / summarise(seconds).p50 for seconds in (duel.ours, duel.theirs))
    ratio = duel.ratio
    rates = f"gangline {ours:11,.0f} {job.unit}/s  bare {theirs:11,.0f}"
    ratio_text = f"gangline / bare {ratio}"
    blocks = f"{ratio.pairs} pairs of {job.steps_per_block} steps"
    verdict = f"at least {BAR}: {'yes' if ratio.mean >= BAR else 'NO'}"
    print(
        f"{job.name:10} compile {'on ' if backend else 'off'}  {rates}   {ratio_text}, {blocks}; {verdict}", flush=True
    )


def _make_model(job: Job, device: torch.device, backend: str | None) -> nn.Module:
    torch.manual_seed(0)
    model = job.make_model().to(device)
    if backend is not None:
        model.forward = torch.compile(model.forward, backend=backend)  # DDP stays outside
    return model


def _make_numbers() -> TensorDataset:
    """Returns numbers of records on the GPU; each occurs many times in an epoch."""
    return TensorDataset(torch.arange(RECORDS_OF_EPOCH) % RECORDS_ON_GPU)


def _loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


@contextmanager
def _group_of_one(device: torch.device) -> Iterator[None]:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _temporary_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="gl-gpu-") as folder, chdir(folder):
        yield


def make_text(device: torch.device, length: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(0, words, (RECORDS_ON_GPU, length + 1), device=device)
    return text[:, :-1], text[:, 1:]


def make_images(device: torch.device, size: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(RECORDS_ON_GPU, 3, size, size, device=device, dtype=torch.bfloat16)
    labels = torch.randint(0, classes, (RECORDS_ON_GPU,), device=device)
    return images.to(memory_format=torch.channels_last), labels


JOBS = (
    Job(
        name="gpt2-small",
        unit="tokens",
        units_per_record=1024,
        batch_size=16,
        make_model=Gpt,
        make_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True),
        make_records=lambda device: make_text(device, 1024, GPT2_WORDS),
    ),
    Job(
        name="resnet-50",
        unit="images",
        units_per_record=1,
        batch_size=256,
        make_model=lambda: ResNet().to(memory_format=torch.channels_last),  # type: ignore[call-overload]  # torch's stubs lack it
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        make_records=lambda device: make_images(device, 224, IMAGE_CLASSES),
    ),
)


if __name__ == "__main__":
    run_benchmark(main)
