"""The Core API: what a training script needs of the cluster, usable without it. Importing it loads neither torch nor
grpc and starts nothing."""

from gangline.core.checkpoint import CheckpointContext, DownloadMode
from gangline.core.context import Context, init
from gangline.core.distributed import DistributedContext
from gangline.core.preempt import PreemptContext, PreemptMode
from gangline.core.train import TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "PreemptContext",
    "PreemptMode",
    "TrainContext",
    "init",
]
