"""`determined.experimental.core_v2`: one context of the Core API for a whole process.

`init` makes it and puts its parts into this module, `close` ends it. In a trial it is that of `core.init()`. Off the
cluster a script trains alone; Determined would make an experiment for it, which Gangline does only by a submit.
"""

from __future__ import annotations

import atexit
import logging
from dataclasses import dataclass
from typing import Any

from gangline import core
from gangline.alias.cluster_info import ClusterInfo, get_cluster_info
from gangline.core import DistributedContext, PreemptMode, TensorboardMode

__all__ = [
    "Config",
    "DefaultConfig",
    "DistributedContext",
    "PreemptMode",
    "TensorboardMode",
    "UnmanagedConfig",
    "checkpoint",
    "close",
    "distributed",
    "info",
    "init",
    "init_context",
    "preempt",
    "searcher",
    "train",
]
_log = logging.getLogger("gangline")

train: core.TrainContext | None = None
distributed: DistributedContext | None = None
preempt: core.PreemptContext | None = None
checkpoint: core.CheckpointContext | None = None
searcher: core.SearcherContext | None = None
info: ClusterInfo | None = None
_context: core.Context | None = None
_is_registered = False


@dataclass
class Config:
    """Describes the experiment that Determined would make. In a trial the submitted configuration applies instead; off
    the cluster only checkpoint_storage has an effect."""

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: Any = None
    searcher: dict[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None


class DefaultConfig(Config):
    """An earlier name of Config."""


class UnmanagedConfig(Config):
    """An earlier name of Config, for its keys of experiments that no cluster runs."""


def init_context(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: Any = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: Any = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> core.Context:
    """Returns a context of `core.init()`, for a `with` block. client, unmanaged: accepted, no effect."""
    config = config or defaults or Config()
    storage = checkpoint_storage
    if get_cluster_info() is None:
        storage = storage or config.checkpoint_storage
        _log.warning(
            "core_v2: this script runs on no cluster, so nothing is recorded: metrics are printed and checkpoints kept "
            "in a folder; to record them run it by: gangline experiment create"
        )
    return core.init(
        distributed=distributed,
        checkpoint_storage=storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def init(**options: Any) -> None:
    """Makes the process's context, with the arguments of `init_context`, and closes an earlier one. It is closed at the
    end of the process, if not before."""
    global _context, _is_registered, train, distributed, preempt, checkpoint, searcher, info  # noqa: PLW0603  see above
    close()
    _context = init_context(**options)
    train, distributed, preempt = _context.train, _context.distributed, _context.preempt
    checkpoint, searcher, info = _context.checkpoint, _context.searcher, get_cluster_info()
    if not _is_registered:
        _is_registered = True
        atexit.register(close)


def close() -> None:
    """Ends the process's context: the last reports have been sent when it returns. It may be called twice."""
    global _context, train, preempt, checkpoint, searcher  # noqa: PLW0603  see above
    ended, _context = _context, None
    train = preempt = checkpoint = searcher = None
    if ended is not None:
        ended.close()
