"""Small trainings for benchmarks/parallel_memory.py, run by torchrun on every rank, which count their own memory.

Each trains one of some models on random records, through the trainer, in one strategy after another. Arguments: a
folder, a device (cpu or cuda), and a JSON list of cases. The results of all ranks go to the folder as found.json.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from benchmarks.process import run_benchmark
from benchmarks.transformer import Transformer
from gangline import pytorch
from gangline.pytorch.parallel.staged.schedule import ScheduleThread
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes

# Steps before the one that is measured: buckets and the optimizer's state are there after them.
WARM_UP = 3
VOCABULARY, LENGTH = 1024, 64
ROWS, FIELDS, CLASSES, PIXELS = 4096, 8, 10, 32


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.group_norm, self.batch_norm = nn.GroupNorm(8, width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.group_norm(self.first(x)))
        return functional.relu(x + self.batch_norm(self.second(inner)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(ConvBlock(64) for _ in range(6))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Recommender(nn.Module):
    """Embeddings of several fields of a record, joined and passed through a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.Embedding(ROWS, 32)
        self.layers = nn.Sequential(nn.Linear(FIELDS * 32, 512), *(Layer() for _ in range(6)))
        self.head = nn.Linear(512, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layers(self.fields(ids).flatten(1)))
        return out


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(512, 512), nn.LayerNorm(512), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.dropout(functional.relu(self.linear(self.norm(x))))
        return out


class Encoder(nn.Module):
    """torch's own encoder with dropout, which classifies a text by the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 128)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, activation="gelu", batch_first=True) for _ in range(5)
        )
        self.head = nn.Linear(128, CLASSES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x.mean(1))
        return out


class Recurrent(nn.Module):
    """Layers of LSTM, whose last output classifies a text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 128)
        self.layers = nn.ModuleList(nn.LSTM(128, 128, batch_first=True) for _ in range(4))
        self.head = nn.Linear(128, CLASSES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text)
        for layer in self.layers:
            x, _ = layer(x)
        out: torch.Tensor = self.head(x[:, -1])
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": partial(Transformer, words=VOCABULARY, length=LENGTH, width=192, heads=4, blocks=6),
    "cnn": Cnn,
    "recommender": Recommender,
    "encoder": Encoder,
    "recurrent": Recurrent,
}
TEXTS = ("gpt", "encoder", "recurrent")


class Records(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Makes each record when it is read, so that the data take no memory beside the batch."""

    def __init__(self, model: str, count: int, dtype: torch.dtype) -> None:
        self.model, self.count, self.dtype = model, count, dtype

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        text = torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=generator) if self.model in TEXTS else None
        if text is not None and self.model == "gpt":
            return text[:-1].clone(), text[1:].clone()
        label = torch.randint(0, CLASSES, (), generator=generator)
        if text is not None:
            return text, label
        if self.model == "cnn":
            return torch.randn(3, PIXELS, PIXELS, generator=generator).to(self.dtype), label
        return torch.randint(0, ROWS, (FIELDS,), generator=generator), label


class SizedTrial(pytorch.PyTorchTrial):
    """Trains one model. hyperparameters: model, optimizer (adamw, momentum or sgd), is_half (weights in bf16)."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.kind = str(context.get_hparam("model"))
        self.dtype = torch.bfloat16 if context.get_hparam("is_half") else torch.float32
        self.model = context.wrap_model(MODELS[self.kind]().to(self.dtype))
        self.optimizer = context.wrap_optimizer(self._optimizer(str(context.get_hparam("optimizer"))))
        self.callback: pytorch.PyTorchCallback = pytorch.PyTorchCallback()

    def _optimizer(self, name: str) -> torch.optim.Optimizer:
        if name == "adamw":
            return torch.optim.AdamW(self.model.parameters(), lr=0.001)
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9 if name == "momentum" else 0)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"meter": self.callback}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(Records(self.kind, 4096, self.dtype), batch_size=size)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


class Meter(pytorch.PyTorchCallback):
    """Takes the peak of each step after the first ones. On the CPU the ledger counts; on a GPU torch's allocator."""

    def __init__(self, ledger: ByteLedger, device: str) -> None:
        self.ledger, self.device = ledger, device
        self.peaks: list[int] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        if self.device == "cuda":
            self.peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        else:
            self.peaks.append(self.ledger.peak)
            self.ledger.restart()


def kept_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Returns the bytes that this rank keeps: of parameters, gradients and the optimizer's state."""
    parameters = list(model.parameters())
    state = (value for entry in optimizer.state.values() for value in entry.values())
    return {
        "parameters": storage_bytes(parameters),
        "gradients": storage_bytes(parameter.grad for parameter in parameters),
        # A counter of steps is one number, however large the parameter.
        "optimizer": storage_bytes(value for value in state if isinstance(value, torch.Tensor) and value.dim()),
    }


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Returns the bytes of the storages of these tensors, each storage once. Tensors on the meta device have none."""
    local = (getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor is not None)
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in local if not tensor.is_meta}
    return sum(storage.nbytes() for storage in storages.values())


def train(case: dict[str, Any], device: str) -> dict[str, Any]:
    """Trains one case. case: parallelism, hparams, and the options of `optimizations`. Returns this rank's bytes."""
    configuration = {
        "parallelism": case["parallelism"],
        "optimizations": case.get("optimizations", {}),
        "scheduling_unit": 1,
        "checkpoint_policy": "none",
    }
    ledger, kept = ByteLedger("cpu"), {}
    meter = Meter(ledger, device)
    start = ScheduleThread.start

    def counted(thread: ScheduleThread, run: Any) -> None:
        def call() -> None:
            with LiveBytes(ledger):
                run()

        start(thread, call)

    with LiveBytes(ledger), pytorch.init(hparams=case["hparams"], exp_conf=configuration) as context:
        trial = SizedTrial(context)
        trial.callback = meter
        # Gradients are cleared after the step's hooks.
        trial.optimizer.register_step_post_hook(lambda *_: kept.update(kept_bytes(trial.model, trial.optimizer)))
        ScheduleThread.start = counted  # type: ignore[method-assign,assignment]  # put back below
        try:
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(WARM_UP + 2))
        finally:
            ScheduleThread.start = start  # type: ignore[method-assign]  # the one of before
    return {**kept, "peak": max(meter.peaks[WARM_UP:])}


def train_all(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trains several cases on the CPU. Returns this rank's bytes of each."""
    return [train(case, "cpu") for case in cases]


def main() -> None:
    torch.set_num_threads(1)
    folder, device = Path(sys.argv[1]), sys.argv[2]
    os.chdir(folder)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    found: list[Any] = []
    for case in json.loads(sys.argv[3]):
        ranks: list[Any] = [None] * size
        # Models and their graphs form cycles.
        gc.collect()
        own = train(case, device)
        if size > 1:
            dist.all_gather_object(ranks, own)
        else:
            ranks = [own]
        found.append(ranks)
    if rank == 0:
        Path("found.json").write_text(json.dumps(found))
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    run_benchmark(main)
