"""The hooks that a trial may put between the trainer's steps. The trainer calls them; none does anything by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gangline.core.beat import CALLBACK, Beat

_log = logging.getLogger("gangline")


class PyTorchCallback:
    """Subclass it, override hooks, return instances from PyTorchTrial.build_callbacks().

    All hooks run on all ranks, except those that name the chief. Hooks must not change what they are given, except
    on_checkpoint_save_start and on_checkpoint_load_start, whose argument is the state itself.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before all others, before loaders are built and before a checkpoint's state is loaded. first_batch_idx: 0, or
        where training goes on. checkpoint_uuid: None for a new trial."""

    def on_trial_shutdown(self) -> None:
        """After everything else, also when training failed; only where on_trial_startup went well."""

    def on_training_start(self) -> None:
        """Before the first batch of this process."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """epoch_idx counts from 0."""

    def on_training_epoch_end(self, epoch_idx: int) -> None: ...

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """At each report. avg_metrics: over all ranks. batch_metrics: this rank's, one entry a batch."""

    def on_validation_start(self) -> None:
        self.on_validation_step_start()

    def on_validation_epoch_start(self) -> None: ...

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """outputs: what evaluate_batch returned on this rank, batch by batch."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """metrics: reduced over all ranks."""
        self.on_validation_step_end(metrics)

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Chief only: the state about to be saved; add what belongs to it."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any] | None) -> None:
        """The state about to be restored."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Chief only: the files are written, but not yet in storage. More files may be put into the folder."""
        self.on_checkpoint_end(checkpoint_dir)

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Chief only: the checkpoint is in storage."""

    # Earlier names of hooks above, which call them unless they are overridden themselves.

    def on_validation_step_start(self) -> None: ...

    def on_validation_step_end(self, metrics: dict[str, Any]) -> None: ...

    def on_checkpoint_end(self, checkpoint_dir: str) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoint shall keep: tensors, numbers, strings, lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def call_all(callbacks: Collection[PyTorchCallback], beat: Beat, hook: Callable[[PyTorchCallback], None]) -> None:
    """A hook of every callback. It may take long, so the rank rests meanwhile."""
    if not callbacks:
        return
    beat.rest(CALLBACK)
    for callback in callbacks:
        hook(callback)
    beat.resume()


@contextmanager
def trial_open(
    callbacks: Mapping[str, PyTorchCallback], first_batch_idx: int, checkpoint_uuid: str | None
) -> Iterator[None]:
    """Between on_trial_startup and on_trial_shutdown. The latter runs on every callback that was started; where one
    fails, the error of the block goes first, and what is not raised is logged."""
    started: dict[str, PyTorchCallback] = {}
    try:
        for name, callback in callbacks.items():
            callback.on_trial_startup(first_batch_idx, checkpoint_uuid)
            started[name] = callback
        yield
    except BaseException:
        for name, error in _shut_down(started):
            _tell(name, error)
        raise
    failures = _shut_down(started)
    for name, error in failures[1:]:
        _tell(name, error)
    if failures:
        raise failures[0][1]


def _shut_down(callbacks: Mapping[str, PyTorchCallback]) -> list[tuple[str, Exception]]:
    """What failed, by the callback's name."""
    failures = []
    for name, callback in callbacks.items():
        try:
            callback.on_trial_shutdown()
        except Exception as error:  # noqa: BLE001  whatever it is, the others have things to close
            failures.append((name, error))
    return failures


def _tell(name: str, error: Exception) -> None:
    _log.error("on_trial_shutdown of the callback %s failed: %r", name, error, exc_info=error)
