"""Writers of TensorBoard files.

torch's own SummaryWriter where the package tensorboard is installed, else tensorboardX's, which has the same methods
and needs nothing but protobuf. Both are loaded when the first writer is made.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def make_writer(directory: Path) -> Any:
    """A SummaryWriter that writes into the folder."""
    if importlib.util.find_spec("tensorboard") is not None:
        from torch.utils.tensorboard import SummaryWriter as TorchSummaryWriter  # noqa: PLC0415  see above

        return TorchSummaryWriter(log_dir=str(directory))
    from tensorboardX import SummaryWriter  # noqa: PLC0415  see above

    return SummaryWriter(logdir=str(directory))
