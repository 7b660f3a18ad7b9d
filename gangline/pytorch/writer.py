"""Writers of TensorBoard files.

torch's own SummaryWriter where the package tensorboard is installed, else tensorboardX's, which has the same methods
and needs nothing but protobuf. Both are loaded when the first writer is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gangline.core.tensorboard import current_folder


def make_writer(directory: Path) -> Any:
    """A SummaryWriter that writes into the folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter as TorchSummaryWriter  # noqa: PLC0415  see above

        return TorchSummaryWriter(str(directory))
    except ImportError:
        from tensorboardX import SummaryWriter  # noqa: PLC0415  see above

        return SummaryWriter(str(directory))


class TorchWriter:
    """Has a SummaryWriter as `writer`, on this rank's TensorBoard folder. Made in a trial, or after core.init()."""

    def __init__(self) -> None:
        self.writer = make_writer(current_folder().path)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self.writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
