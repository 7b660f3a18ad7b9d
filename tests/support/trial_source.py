"""Source of small trials that tests write to disk and run in ranks."""

from __future__ import annotations

# A regression small enough for a thousand batches a second. It prints the records of every batch.
LINEAR = """
import torch
from torch import nn
from torch.utils.data import Dataset
from gangline import pytorch


class Points(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(count, 6, generator=generator)
        self.targets = torch.tanh(self.inputs.sum(dim=1, keepdim=True))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index], index


class LinearTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        net = nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.model = context.wrap_model(net)
        if context.get_hparams().get("optimizer") == "adamw":
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = context.wrap_optimizer(optimizer)
        self.schedule = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.8), pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH
        )

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(Points(100), batch_size=size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(37), batch_size=5)

    def train_batch(self, batch, epoch_idx, batch_idx):
        inputs, targets, indices = batch
        print("records", epoch_idx, batch_idx, indices.tolist(), flush=True)
        noise = self.context.get_hparams().get("noise", 0.0) * torch.randn(1)
        loss = nn.functional.mse_loss(self.model(inputs), targets) + noise * self.model[0].weight.sum()
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch):
        inputs, targets, _ = batch
        return {"error": nn.functional.mse_loss(self.model(inputs), targets)}
"""


def linear_config(max_length: object, **more: object) -> dict[str, object]:
    """The experiment's configuration for LINEAR, reporting after every batch."""
    return {
        "entrypoint": "model_def:LinearTrial",
        "searcher": {"name": "single", "metric": "error", "max_length": max_length},
        "scheduling_unit": 1,
        "checkpoint_policy": "none",
        **more,
    }
