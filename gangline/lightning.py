"""Connects Lightning's Trainer with the Core API.

Owns one callback, `GanglineCallback`: metrics, checkpoints, resume and preemption; and `trainer_arguments`, which gives
a Trainer the trial's slots and length. Needs the package lightning; nothing else of Gangline imports this module.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import callbacks

from gangline.core.context import Context
from gangline.core.searcher import Unit, unit_of
from gangline.core.temporary import temporary_folder
from gangline.domain.experiment import STEPS_COMPLETED
from gangline.domain.settled.searcher import SettledLength
from gangline.domain.storage.foreign_checkpoint import TRIAL_ID
from gangline.errors import invalid

__all__ = ["GanglineCallback", "trainer_arguments"]

CHECKPOINT_FILE = "lightning.ckpt"
USER_DATA_FILE = "my_data.json"
_LENGTHS = {"batches": "max_steps", "epochs": "max_epochs"}


def trainer_arguments(core_context: Context) -> dict[str, Any]:
    """Returns arguments for `lightning.Trainer(**arguments)`: `devices` and `num_nodes` for the slots of the trial, and
    `max_steps` or `max_epochs` from `searcher.max_length`. Every machine must give the trial equally many slots.

    Raises GanglineError `lightning.length` for a length in records.
    """
    distributed = core_context.distributed
    arguments: dict[str, Any] = {"devices": distributed.local_size, "num_nodes": distributed.cross_size}
    length = _length_of(core_context)
    if length is not None and length.unit == "records":
        raise invalid(
            "lightning.length",
            "a Lightning Trainer counts no records; give searcher.max_length in batches or epochs",
        )
    if length is not None and length.unit in _LENGTHS:
        # Without max_epochs a Trainer would stop after 1,000 epochs.
        arguments |= {"max_epochs": -1, _LENGTHS[length.unit]: length.units}
    return arguments


def _length_of(core_context: Context) -> SettledLength | None:
    """Returns the length of the experiment; None off the cluster and where the script sets its own."""
    info = core_context.info
    return info.trial.settled.searcher.operation_length if info is not None else None


class GanglineCallback(callbacks.Checkpoint):  # type: ignore[misc]  # its base is untyped here
    """Pass it in `callbacks` of a Lightning Trainer, on every rank, and resume with
    `trainer.fit(module, ckpt_path=callback.ckpt_path)`.

    It reports what the module logs: in a validation as validation metrics, otherwise as training metrics every
    `log_every_n_steps`. It saves after each validation, at the end and when preempted; as it is one of Lightning's
    `Checkpoint` callbacks, the Trainer adds no ModelCheckpoint of its own.

    core_context: of `core.init()`. saves_after_validation: False saves at the end and when preempted only. user_data: a
    JSON document that each checkpoint gets as `my_data.json`. ckpt_path: the trial's latest checkpoint, or None.

    Raises GanglineError `lightning.checkpoint` where the trial begins from a checkpoint that this class has not saved.
    """

    def __init__(
        self, core_context: Context, *, saves_after_validation: bool = True, user_data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self._core = core_context
        self._saves_after_validation = saves_after_validation
        self._user_data = user_data
        self._unit = unit_of(_length_of(core_context))
        self._validation_names: set[str] = set()
        self._before: dict[str, Any] = {}
        self._saved = self._percent = self._reported = -1
        self._is_preempted = False
        self._folder: TemporaryDirectory[str] | None = None
        self.ckpt_path = self._fetch()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.ckpt_path is not None and not trainer.global_step:
            raise invalid(
                "lightning.not_resumed",
                "this trial has a checkpoint, and the Trainer begins at step 0; call "
                "trainer.fit(module, ckpt_path=callback.ckpt_path)",
            )
        self._saved = self._reported = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Reports, and asks for a preemption on all ranks in step. A preempted trial saves at once and stops."""
        step = trainer.global_step
        # With accumulated gradients several batches have the same step. An earlier attempt has reported its last one.
        if step and step % trainer.log_every_n_steps == 0 and step != self._reported:
            self._reported = step
            names = trainer.callback_metrics.keys() - self._validation_names
            self._report("training", trainer, {name: trainer.callback_metrics[name] for name in names})
        self._report_progress(trainer)
        if self._core.preempt.should_preempt():
            self._is_preempted = trainer.should_stop = True
            self._save(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports the metrics that the validation has set. Lightning keeps them among those of the training."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        metrics = {
            name: value for name, value in trainer.callback_metrics.items() if self._before.get(name) is not value
        }
        self._validation_names |= metrics.keys()
        if self._core.distributed.is_chief:
            units = {Unit.BATCHES: float(trainer.global_step), Unit.EPOCHS: float(trainer.current_epoch + 1)}
            self._core.train.note_units(units.get(self._unit) if self._unit is not None else None)
        self._report("validation", trainer, metrics)
        if self._saves_after_validation:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer)
        if self._core.distributed.is_chief and not self._is_preempted:
            self._core.train.report_trainers_progress(trainer.global_step, trainer.global_step)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _fetch(self) -> str | None:
        """Fetches the trial's latest checkpoint into a folder of this rank, which lasts until the end of the fit."""
        latest = self._core.info.latest_checkpoint if self._core.info is not None else None
        if latest is None:
            return None
        self._folder = temporary_folder("lightning")
        folder = Path(self._folder.name)
        with self._core.checkpoint.restore_path(latest.id) as source:
            path = source / CHECKPOINT_FILE
            if not path.exists():
                raise invalid(
                    "lightning.checkpoint",
                    f"checkpoint {latest.id} has no {CHECKPOINT_FILE}; begin from one that GanglineCallback saved",
                )
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, folder / CHECKPOINT_FILE)
        return str(folder / CHECKPOINT_FILE)

    def _save(self, trainer: Any) -> None:
        """Saves and uploads, on all ranks together. With FSDP each rank writes its own part of the folder."""
        step = trainer.global_step
        if step == self._saved:
            return
        self._saved = step
        metadata: dict[str, Any] = {STEPS_COMPLETED: step}
        if self._core.info is not None:
            metadata[TRIAL_ID] = self._core.info.trial.trial_id
        with self._core.checkpoint.store_path(metadata, shard=True) as (folder, _):
            trainer.save_checkpoint(folder / CHECKPOINT_FILE)
            if self._user_data is not None and self._core.distributed.is_chief:
                (folder / USER_DATA_FILE).write_text(json.dumps(self._user_data))

    def _report(self, group: str, trainer: Any, metrics: Mapping[str, Any]) -> None:
        if not self._core.distributed.is_chief:
            return
        times = {"batches": trainer.global_step, "epochs": trainer.current_epoch}
        self._core.train.report_metrics(group, trainer.global_step, {**times, **metrics})

    def _report_progress(self, trainer: Any) -> None:
        """Reports each whole percent."""
        total = trainer.estimated_stepping_batches
        if not self._core.distributed.is_chief or not 0 < total < float("inf"):
            return
        percent = min(100, int(100 * trainer.global_step / total))
        if percent > self._percent:
            self._percent = percent
            self._core.train.report_trainers_progress(trainer.global_step, int(total))
