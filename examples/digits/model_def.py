"""A small convolutional network that reads handwritten digits: 1,797 images of 8 x 8 pixels, which scikit-learn brings
along. The same file trains in the cluster, under torchrun, and alone (`python3 model_def.py`)."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from gangline import get_cluster_info, pytorch

VALIDATION_SHARE = 5


class DigitsTrial(pytorch.PyTorchTrial):
    """Hyperparameters: global_batch_size, learning_rate, decay (of the learning rate, each epoch), width."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        width = context.get_hparam("width")
        self.model = context.wrap_model(make_model(width))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(
                self.model.parameters(), lr=context.get_hparam("learning_rate"), momentum=0.9, weight_decay=1e-4
            )
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=context.get_hparam("decay")),
            pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.training, self.validation = split(*load_images())

    def build_training_data_loader(self) -> pytorch.DataLoader:
        # With drop_last an epoch has equally many batches on any number of slots, and so the same losses.
        return pytorch.DataLoader(
            self.training, batch_size=self.context.get_per_slot_batch_size(), shuffle=True, drop_last=True
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation, batch_size=128)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(scores, labels),
            "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
        }


def make_model(width: int) -> nn.Module:
    """GroupNorm rather than BatchNorm: it does not depend on how a batch is split over the slots."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def load_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of shape (N, 1, 8, 8) from 0 to 1, and labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def split(images: torch.Tensor, labels: torch.Tensor) -> tuple[TensorDataset, TensorDataset]:
    """Every fifth image is for validation: the same ones on every rank and in every run."""
    is_validation = torch.arange(len(labels)) % VALIDATION_SHARE == 0
    return (
        TensorDataset(images[~is_validation], labels[~is_validation]),
        TensorDataset(images[is_validation], labels[is_validation]),
    )


def main() -> None:
    hparams = {"global_batch_size": 64, "learning_rate": 0.1, "decay": 0.85, "width": 16}
    # Off the cluster: the seed of the experiment files, so that the losses are theirs.
    exp_conf = {"reproducibility": {"experiment_seed": 12}}
    info = get_cluster_info()
    with pytorch.init(hparams=hparams, exp_conf=exp_conf) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(10),
            validation_period=pytorch.Epoch(2),
            reporting_period=pytorch.Batch(10),
            latest_checkpoint=info.latest_checkpoint if info else None,
        )


if __name__ == "__main__":
    main()
