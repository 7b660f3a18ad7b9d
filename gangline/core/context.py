"""What `gangline.core.init()` gives a script: the parts of the Core API, made for where the script runs.

Owns only their assembly. On the cluster the parts talk to the trial runner; elsewhere their local twins print metrics
and keep checkpoints in a folder.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.core.checkpoint import CheckpointContext
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link, connect
from gangline.core.preempt import PreemptContext, PreemptMode
from gangline.core.storage import CheckpointStore
from gangline.core.train import TrainContext


class Context:
    """A context manager. info: None off the cluster."""

    def __init__(
        self,
        *,
        distributed: DistributedContext,
        train: TrainContext,
        checkpoint: CheckpointContext,
        preempt: PreemptContext,
        info: ClusterInfo | None,
        link: Link,
    ) -> None:
        self.distributed = distributed
        self.train = train
        self.checkpoint = checkpoint
        self.preempt = preempt
        self.info = info
        self.link = link

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.link.flush()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
) -> Context:
    """Makes the Core API's context; use it as `with core.init() as context:`. Every rank calls it.

    distributed: where this rank stands; by default it is read from the environment that the trial runner and torchrun
    set. checkpoint_storage: a folder or an fsspec URL, by default the experiment's storage, or the working directory
    off the cluster. Checkpoints lie in its folder `checkpoints`.
    """
    cluster = get_cluster_info()
    link = connect()
    distributed = distributed or DistributedContext.from_environment()
    storage_url = checkpoint_storage or (cluster.storage_url if cluster else str(Path.cwd()))
    return Context(
        distributed=distributed,
        train=TrainContext(distributed, link, cluster),
        checkpoint=CheckpointContext(distributed, link, CheckpointStore(storage_url), cluster),
        preempt=PreemptContext(distributed, link, preempt_mode),
        info=cluster,
        link=link,
    )
