"""Script of an experiment: a tiny module in Lightning's Trainer.

Its first attempt waits after five steps until it is asked to give its slots back.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from gangline import core

sys.path.append(os.environ["FRAMEWORKS"])
import lightning

from gangline.lightning import GanglineCallback, trainer_arguments

GATE_STEP = 5


class _Line(lightning.LightningModule):  # type: ignore[misc]  # lightning is installed where the script runs
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def _loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("eval_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class _Gate(lightning.Callback):  # type: ignore[misc]  # as above
    def __init__(self, context: core.Context) -> None:
        super().__init__()
        self._context = context

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        info = self._context.info
        if info is not None and info.attempt == 1 and trainer.global_step == GATE_STEP and trainer.is_global_zero:
            while self._context.link.preemption is None:
                time.sleep(0.01)


def _loader() -> Any:
    inputs = torch.linspace(-1, 1, 384).reshape(96, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, batch_size=4)


def main() -> None:
    with core.init() as context:
        callback = GanglineCallback(context, user_data={"author": "a lab"})
        trainer = lightning.Trainer(
            **trainer_arguments(context),
            accelerator="cpu",
            logger=False,
            callbacks=[_Gate(context), callback],
            accumulate_grad_batches=2,
            log_every_n_steps=1,
            val_check_interval=12,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(_Line(), _loader(), _loader(), ckpt_path=callback.ckpt_path)


if __name__ == "__main__":
    main()
