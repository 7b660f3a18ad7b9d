"""The Core API: metrics, checkpoints, preemption and small exchanges between ranks, for a training script, also off the
cluster. Importing it loads neither torch nor grpc and starts nothing.

Start: context.py
"""

from gangline.core.checkpoint import CheckpointContext, DownloadMode
from gangline.core.context import Context, init
from gangline.core.dataset_folder import download_once
from gangline.core.distributed import DistributedContext
from gangline.core.preempt import PreemptContext, PreemptMode
from gangline.core.profiler import ProfilerContext
from gangline.core.searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from gangline.core.tensorboard import TensorboardMode
from gangline.core.train import EarlyExitReason, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "download_once",
    "init",
]
