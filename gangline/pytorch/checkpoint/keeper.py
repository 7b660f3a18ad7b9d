"""Saves and restores one trial: captures its state, calls its callbacks, and pauses the hang watchdog.

The training loop calls it on all ranks in step and uses nothing else of checkpoints; the loop decides when to save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gangline.core.beat import CHECKPOINT
from gangline.core.temporary import temporary_folder
from gangline.pytorch.checkpoint.capture import TRAINER_FILE, capture
from gangline.pytorch.checkpoint.content import is_of_another_trial, metadata_of
from gangline.pytorch.checkpoint.plain import to_bytes
from gangline.pytorch.checkpoint.restore import restore, restore_random
from gangline.pytorch.checkpoint.saver import Saver
from gangline.pytorch.checkpoint.source import Source
from gangline.pytorch.trial.callback import PyTorchCallback, call_all
from gangline.pytorch.trial.context import PyTorchTrialContext

_log = logging.getLogger("gangline")


class Keeper:
    """Saves and restores one trial. A save runs in the background; the next `save`, `poll` or `wait` raises its error.

    Storage may take any time, so the heartbeat rests while the rank waits for it.
    """

    def __init__(self, context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback]) -> None:
        self._context = context
        self._callbacks = callbacks
        self._restored = -1
        self._saver = Saver(
            context.core.checkpoint,
            context.distributed,
            is_asynchronous=context.setting.settled.async_checkpoints,
            on_saved=self._tell,
        )

    def save(self, batches: int, progress: Mapping[str, Any], validation: Mapping[str, float]) -> None:
        """Begins to save. progress: the loop's own, plain values. validation: the metrics of this very state, empty
        without any."""
        self._context.core.beat.enter(CHECKPOINT)
        self._context.strategy.share_buffers(self._context.models)
        captured = capture(self._context, self._callbacks, progress)
        folder = self._write_trainer(captured.trainer) if self._context.distributed.is_chief else None
        metadata = metadata_of(self._context, batches, validation)
        self._context.core.beat.rest(CHECKPOINT)
        self._saver.save(captured, batches, metadata, folder)
        self._context.core.beat.resume()

    def poll(self) -> None:
        self._saver.poll()

    def wait(self) -> None:
        """Waits until no save is under way."""
        self._context.core.beat.rest(CHECKPOINT)
        self._saver.wait()
        self._context.core.beat.resume()

    def settle(self) -> None:
        """Gives the save under way some time, on a rank that fails. An error of the save is only logged."""
        self._context.core.beat.rest(CHECKPOINT)
        self._saver.settle()

    def describe_newest(self) -> str:
        """Returns the checkpoint that training can continue from, as a clause of a message."""
        newest = max(self._restored, self._saver.newest)
        description = f"the newest checkpoint is of batch {newest}" if newest >= 0 else "there is no checkpoint yet"
        batches = self._saver.under_way
        return description if batches is None else f"{description}, one of batch {batches} is being saved"

    def settle_and_describe(self) -> str:
        """Settles the save under way and describes the newest checkpoint, for the message of a rank that fails."""
        self.settle()
        return self.describe_newest()

    def restore(self, source: Source) -> bool:
        """Restores everything but the random numbers. Returns whether the checkpoint is this trial's, so that training
        also continues from its position."""
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(source.trainer)
        restore(self._context, self._callbacks, source)
        batches, own_id = source.trainer["progress"]["batches"], self._context.get_trial_id()
        if not is_of_another_trial(source.trial_id, own_id):
            self._restored = batches
            return True
        if self._context.distributed.is_chief:
            text = "the checkpoint is of trial %s after batch %d: trial %s takes its state and begins at batch 0"
            _log.info(text, source.trial_id, batches, own_id)
        return False

    def restore_random(self, source: Source) -> None:
        """Restores the random numbers. Called when no random draw is left before the first batch."""
        restore_random(self._context, source)

    def _write_trainer(self, trainer: dict[str, Any]) -> TemporaryDirectory[str]:
        """Writes trainer.pth to a folder, to which callbacks may add files of their own. Returns the folder."""
        self._call(lambda callback: callback.on_checkpoint_save_start(trainer))
        folder = temporary_folder("checkpoint")
        Path(folder.name, TRAINER_FILE).write_bytes(to_bytes(trainer, "the trial's state"))
        self._call(lambda callback: callback.on_checkpoint_write_end(folder.name))
        return folder

    def _tell(self, storage_id: str) -> None:
        if self._context.distributed.is_chief:
            self._call(lambda callback: callback.on_checkpoint_upload_end(storage_id))

    def _call(self, hook: Callable[[PyTorchCallback], None]) -> None:
        call_all(self._callbacks.values(), self._context.core.beat, hook)
