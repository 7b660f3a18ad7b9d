"""Training library: a trial class, its context and loader, and the trainer that runs it on one rank or many.

Importing it loads torch, but starts no thread and touches no GPU, so that ranks can be forked from a process that has
imported it.
"""

from gangline.pytorch.batch import TorchData
from gangline.pytorch.callback import PyTorchCallback
from gangline.pytorch.checkpoint import load_checkpoint
from gangline.pytorch.context import PyTorchTrialContext
from gangline.pytorch.experimental import PyTorchExperimentalContext
from gangline.pytorch.load import load_trial_from_checkpoint_path
from gangline.pytorch.loader import DataLoader
from gangline.pytorch.metric import Reducer
from gangline.pytorch.reducer import MetricReducer
from gangline.pytorch.scheduler import LRScheduler
from gangline.pytorch.setup import init
from gangline.pytorch.trainer import Trainer
from gangline.pytorch.trial import PyTorchTrial
from gangline.pytorch.unit import Batch, Epoch, Record, TrainUnit

__all__ = [
    "Batch",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "init",
    "load_checkpoint",
    "load_trial_from_checkpoint_path",
]
