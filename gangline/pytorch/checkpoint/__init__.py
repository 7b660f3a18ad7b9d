"""Checkpoints of a trial: their content, how they are written while training continues, and how they are read into any
strategy and any number of ranks.

A checkpoint's folder has
- `tensors/`: models and optimizers, as torch.distributed.checkpoint writes them, each rank its share;
- `trainer.pth`: values that all ranks agree on: schedulers, callbacks, the position in the data;
- `rank_<n>.pth`: values of one rank: its random numbers;
- `metadata.json`: the manifest that makes it a checkpoint.
The two kinds of .pth have tensors, numbers, strings, lists and dictionaries only, so that torch.load reads them with
weights_only.

Checkpoints of Determined's trainer are read as well (determined.py).

Start: __init__.py
"""

from gangline.domain.storage.foreign_checkpoint import TRIAL_ID
from gangline.pytorch.checkpoint.content import is_of_another_trial, load_checkpoint
from gangline.pytorch.checkpoint.keeper import Keeper
from gangline.pytorch.checkpoint.restore import restore
from gangline.pytorch.checkpoint.source import Source, is_plain_determined, open_checked, open_source

__all__ = [
    "TRIAL_ID",
    "Keeper",
    "Source",
    "is_of_another_trial",
    "is_plain_determined",
    "load_checkpoint",
    "open_checked",
    "open_source",
    "restore",
]
