"""A trial's checkpoints: what is in them, how they are written while training goes on, and how they are read back into
any strategy and any number of ranks.

A checkpoint's folder holds
- `tensors/`: models and optimizers, as torch.distributed.checkpoint writes them, each rank its share;
- `trainer.pth`: what all ranks agree on: schedulers, callbacks, the position in the data;
- `rank_<n>.pth`: what belongs to one rank: its random numbers;
- `metadata.json`: the manifest that makes it a checkpoint.
The two kinds of .pth hold tensors, numbers, strings, lists and dictionaries only, so that torch.load reads them with
weights_only.
"""

from gangline.pytorch.checkpoint.content import is_of_another_trial, load_checkpoint
from gangline.pytorch.checkpoint.keeper import Keeper
from gangline.pytorch.checkpoint.restore import restore
from gangline.pytorch.checkpoint.source import TRIAL_ID, Source, open_source

__all__ = ["TRIAL_ID", "Keeper", "Source", "is_of_another_trial", "load_checkpoint", "open_source", "restore"]
