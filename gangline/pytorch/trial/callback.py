"""PyTorchCallback: hooks that the trainer calls between its steps. By default each hook does nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gangline.core.beat import CALLBACK, Beat

_log = logging.getLogger("gangline")


class PyTorchCallback:
    """Base class of callbacks. Subclass it, override hooks, return instances from PyTorchTrial.build_callbacks().

    All hooks run on all ranks, except those that name the chief. Hooks must not change their arguments, except
    on_checkpoint_save_start and on_checkpoint_load_start, whose argument is the state itself.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before all others, before loaders are built and before a checkpoint's state is loaded.
        first_batch_idx: 0, or the batch at which training continues. checkpoint_uuid: None for a new trial."""

    def on_trial_shutdown(self) -> None:
        """Called after everything else, also when training failed; only where on_trial_startup succeeded."""

    def on_training_start(self) -> None:
        """Called before the first batch of this process."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch. epoch_idx counts from 0."""

    def on_training_epoch_end(self, epoch_idx: int) -> None: ...

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        """Called at each report. avg_metrics: over all ranks. batch_metrics: this rank's, one entry a batch."""

    def on_validation_start(self) -> None:
        self.on_validation_step_start()

    def on_validation_epoch_start(self) -> None: ...

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last validation batch. outputs: results of evaluate_batch on this rank, batch by batch."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Called at the end of a validation. metrics: reduced over all ranks."""
        self.on_validation_step_end(metrics)

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on the chief only, with the state about to be saved. May add entries to it."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any] | None) -> None:
        """Called with the state about to be restored."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Called on the chief only, when the files are written but not yet in storage. More files may be put into the
        folder."""
        self.on_checkpoint_end(checkpoint_dir)

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called on the chief only, when the checkpoint is in storage."""

    # Earlier names of the hooks above, which call them unless they are overridden themselves.

    def on_validation_step_start(self) -> None: ...

    def on_validation_step_end(self, metrics: dict[str, Any]) -> None: ...

    def on_checkpoint_end(self, checkpoint_dir: str) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for checkpoints: tensors, numbers, strings, lists and dictionaries of them."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def call_all(callbacks: Collection[PyTorchCallback], beat: Beat, hook: Callable[[PyTorchCallback], None]) -> None:
    """Calls a hook of every callback. The heartbeat rests meanwhile, because a hook may take long."""
    if not callbacks:
        return
    beat.rest(CALLBACK)
    for callback in callbacks:
        hook(callback)
    beat.resume()


def start_epoch(callback: PyTorchCallback, epoch_idx: int) -> None:
    """Calls on_training_epoch_start. The hooks of old code take no argument."""
    hook = callback.on_training_epoch_start
    if inspect.signature(hook).parameters:
        hook(epoch_idx)
    else:
        hook()  # type: ignore[call-arg]  # see above


@contextmanager
def trial_open(
    callbacks: Mapping[str, PyTorchCallback], first_batch_idx: int, checkpoint_uuid: str | None
) -> Iterator[None]:
    """Calls on_trial_startup at the beginning and on_trial_shutdown at the end. The latter runs on every callback that
    was started. If one fails, the error of the block takes precedence, and errors that are not raised are logged."""
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
    """Shuts down every callback. Returns the errors by the callback's name."""
    failures = []
    for name, callback in callbacks.items():
        try:
            callback.on_trial_shutdown()
        except Exception as error:  # noqa: BLE001  any error, as the other callbacks must close as well
            failures.append((name, error))
    return failures


def _tell(name: str, error: Exception) -> None:
    _log.error("on_trial_shutdown of the callback %s failed: %r", name, error, exc_info=error)
