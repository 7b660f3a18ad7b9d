"""The training library: start, samplers, loading of trained models. Its folders have a trial class, its context and
loader, and the trainer that runs it on one rank or many.

Importing it loads torch, but starts no thread and touches no GPU, so that ranks can be forked from a process that has
imported it.

Start: setup.py
"""

from gangline.pytorch.checkpoint import load_checkpoint
from gangline.pytorch.data.batch_data import TorchData, data_length, to_device
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.load import CheckpointLoadContext, load_trial_from_checkpoint_path
from gangline.pytorch.metrics.metric import Reducer
from gangline.pytorch.metrics.reducer import MetricReducer
from gangline.pytorch.sampler import adapt_batch_sampler
from gangline.pytorch.setup import init
from gangline.pytorch.training.trainer import Trainer
from gangline.pytorch.trial.callback import PyTorchCallback
from gangline.pytorch.trial.context import PyTorchExperimentalContext, PyTorchTrialContext
from gangline.pytorch.trial.lr_scheduler import LRScheduler
from gangline.pytorch.trial.trial import PyTorchTrial
from gangline.pytorch.trial.unit import Batch, Epoch, Record, TrainUnit

__all__ = [
    "Batch",
    "CheckpointLoadContext",
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
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_checkpoint",
    "load_trial_from_checkpoint_path",
    "to_device",
]
