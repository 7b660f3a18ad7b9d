"""`determined.core`: the names of gangline.core, and the Dummy classes, with which programs run parts off the cluster.

Each of them is the twin that `core.init()` makes off the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangline import core
from gangline.core import *  # noqa: F403  all public names, which are those of Determined
from gangline.core import (
    CheckpointContext,
    DistributedContext,
    PreemptContext,
    PreemptMode,
    ProfilerContext,
    SearcherContext,
    TensorboardMode,
    TrainContext,
)
from gangline.core.link import Link
from gangline.core.storage_access.storage import CheckpointStore
from gangline.core.tensorboard import TensorboardFolder
from gangline.domain.settled.searcher import SettledLength
from gangline.errors import invalid

__all__ = list(core.__all__)
__all__ += [
    "DummyCheckpointContext",
    "DummyDistributedContext",
    "DummyPreemptContext",
    "DummyProfilerContext",
    "DummySearcherContext",
    "DummyTrainContext",
]


class DummyDistributedContext(DistributedContext):
    """The one rank of a program that trains alone."""

    def __init__(self) -> None:
        super().__init__()


class DummyTrainContext(TrainContext):
    """Prints metrics. tensorboard_path: the folder below which files for TensorBoard are written."""

    def __init__(self, tensorboard_path: Path | str | None = None) -> None:
        folder = TensorboardFolder(str(tensorboard_path or Path.cwd()), "", 0, TensorboardMode.MANUAL)
        super().__init__(DistributedContext(), Link(), None, folder)


class DummyPreemptContext(PreemptContext):
    """Never asks to stop."""

    def __init__(
        self, dist: DistributedContext | None = None, preempt_mode: PreemptMode = PreemptMode.WorkersAskChief
    ) -> None:
        super().__init__(dist or DistributedContext(), Link(), preempt_mode)


class DummySearcherContext(SearcherContext):
    """Yields one operation. length: its batches."""

    def __init__(self, dist: DistributedContext | None = None, length: int = 1) -> None:
        super().__init__(
            dist or DistributedContext(), DummyTrainContext(), SettledLength("batches", length), is_local=True
        )


class DummyProfilerContext(ProfilerContext):
    """Measures, and reports to no cluster."""

    def __init__(self) -> None:
        super().__init__(DistributedContext(), Link())


class DummyCheckpointContext(CheckpointContext):
    """Keeps checkpoints in a folder. storage_manager: the folder or its fsspec URL; a manager of Determined is refused
    with `core.storage`."""

    def __init__(self, dist: DistributedContext, storage_manager: Any) -> None:
        if not isinstance(storage_manager, str | Path):
            raise invalid(
                "core.storage",
                f"DummyCheckpointContext got a {type(storage_manager).__name__}; give a folder or an fsspec URL",
            )
        super().__init__(dist, Link(), CheckpointStore(str(storage_manager), None), None)
