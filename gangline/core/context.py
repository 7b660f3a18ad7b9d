"""Assembles the parts of the Core API for `gangline.core.init()`, as the place where the script runs requires.

Owns only the assembly. On the cluster the parts talk to the trial runner. Elsewhere their local twins print metrics and
keep checkpoints in a folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.core import refusal
from gangline.core.beat import Beat, NoBeat, open_beat
from gangline.core.checkpoint import CheckpointContext
from gangline.core.closing import close_side_output
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link, connect
from gangline.core.preempt import PreemptContext, PreemptMode
from gangline.core.profiler import ProfilerContext
from gangline.core.searcher import SearcherContext
from gangline.core.storage_access.storage import CheckpointStore
from gangline.core.tensorboard import TensorboardFolder, TensorboardMode
from gangline.core.train import TrainContext
from gangline.domain.settled.record import SettledParallelism
from gangline.domain.storage.partial import Writer
from gangline.domain.storage.storage_url import check_storage_url
from gangline.errors import invalid
from gangline.lacking import Lacking

_ALERT_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_log = logging.getLogger("gangline")
_uses_parallelism = False


def note_parallelism_used() -> None:
    """Notes that this process carries out the section `parallelism`. Called by gangline.pytorch.init; may be called
    again."""
    global _uses_parallelism  # noqa: PLW0603  a process trains one trial
    _uses_parallelism = True


class Context(Lacking):
    """The Core API of one process, usable as a context manager. info: None off the cluster."""

    lacks = ("experimental",)

    def __init__(
        self,
        *,
        distributed: DistributedContext,
        train: TrainContext,
        checkpoint: CheckpointContext,
        preempt: PreemptContext,
        searcher: SearcherContext,
        profiler: ProfilerContext,
        tensorboard: TensorboardFolder,
        info: ClusterInfo | None,
        link: Link,
        beat: Beat,
    ) -> None:
        self.distributed = distributed
        self.train = train
        self.checkpoint = checkpoint
        self.preempt = preempt
        self.searcher = searcher
        self.profiler = profiler
        self.tensorboard = tensorboard
        self.info = info
        self.link = link
        self.beat = beat
        self._is_closed = False

    def __enter__(self) -> Context:
        return self

    def start(self) -> None:
        """Does nothing: the parts work from `init` on. Scripts without a `with` block call it, and `close` at the
        end."""

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            self.distributed.close()
            return
        # The error of the block is the one to report.
        with suppress(Exception):
            self._end()
        with suppress(Exception):
            self.distributed.close(waits=False)

    def alert(self, title: str = "", description: str = "", level: str = "info") -> None:
        """Writes a line about something that people should see into the trial's log, where `experiment logs --level`
        and log policies find it. level: debug, info, warn or error. Raises GanglineError `core.alert`."""
        number = _ALERT_LEVELS.get(level.lower())
        if number is None:
            raise invalid("core.alert", f"level is {level!r}; give one of {', '.join(_ALERT_LEVELS)}")
        _log.log(number, "alert: %s", ": ".join(part for part in (title, description) if part))

    def close(self) -> None:
        """Ends the background work. The last files and reports have been sent when it returns, or the time limit for
        sending is over. May be called again, also inside of the `with` block."""
        if not self._is_closed and self.info is not None and self.distributed.rank == 0:
            _warn_of_unused(self.info.trial.settled.parallelism)
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        self.profiler.off()
        close_side_output("TensorBoard files", self.tensorboard.close)
        self.beat.end()
        # Last, because the parts above still send reports.
        self.link.flush()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Makes the Core API's context; use it as `with core.init() as context:`. Every rank calls it.

    distributed: the place of this rank; by default it is read from the environment that the trial runner and torchrun
    set.
    checkpoint_storage: a folder or an fsspec URL. The default is the experiment's storage, or the working directory off
    the cluster. A mapping as in an experiment file may name a shared_fs or a directory. Checkpoints are stored in its
    folder `checkpoints`, files for TensorBoard in `tensorboard`.
    Raises GanglineError `storage.url`, `storage.chain` or `storage.protocol` for a URL that is no checkpoint storage.
    """
    cluster, link = get_cluster_info(), connect()
    # Before the checks below, so that their refusals are printed as one line.
    refusal.install(link)
    distributed = distributed or DistributedContext.from_environment()
    _note_other_slots(cluster, distributed)
    chosen_url = _url_of(checkpoint_storage)
    if chosen_url:
        check_storage_url(chosen_url, cluster.storage_url if cluster else "")
    context = _assemble(
        cluster=cluster,
        link=link,
        beat=open_beat(cluster),
        distributed=distributed,
        storage_url=chosen_url or (cluster.storage_url if cluster else str(Path.cwd())),
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    context.tensorboard.become_current()
    return context


def _warn_of_unused(parallelism: SettledParallelism) -> None:
    """Warns where nothing in this process has carried out the section."""
    # A trial on one slot, or one that spreads itself, has these strategies by default.
    is_default = parallelism in (SettledParallelism("ddp"), SettledParallelism("none"))
    if not _uses_parallelism and not is_default:
        _log.warning("parallelism has no effect: this script does not train with gangline.pytorch")


def _note_other_slots(cluster: ClusterInfo | None, distributed: DistributedContext) -> None:
    if cluster is not None and cluster.runs_once and distributed.size < cluster.world_size:
        _log.info(
            "the script runs once on each machine: %d process(es) of the trial have %d slots; `python3 -m "
            "gangline.launch.torch_distributed` in front of it runs it in every slot",
            distributed.size,
            cluster.world_size,
        )


def alone() -> Context:
    """Returns a context of this process alone, as off the cluster, wherever the process runs. It serves code that
    trains nothing. It starts nothing and need not be closed."""
    return _assemble(
        cluster=None,
        link=Link(),
        beat=NoBeat(),
        distributed=DistributedContext(),
        storage_url=str(Path.cwd()),
        preempt_mode=PreemptMode.WorkersAskChief,
        tensorboard_mode=TensorboardMode.MANUAL,
    )


def _assemble(
    *,
    cluster: ClusterInfo | None,
    link: Link,
    beat: Beat,
    distributed: DistributedContext,
    storage_url: str,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    writer = Writer(cluster.cluster_id, cluster.allocation_id) if cluster else None
    trial_id = cluster.trial.trial_id if cluster else ""
    store = CheckpointStore(storage_url, writer, _marker_of(cluster, storage_url))
    tensorboard = TensorboardFolder(
        storage_url, trial_id, distributed.rank, tensorboard_mode, check_storage=store.check_present
    )
    train = TrainContext(distributed, link, cluster, tensorboard, beat)
    length = cluster.trial.settled.searcher.operation_length if cluster else None
    return Context(
        distributed=distributed,
        train=train,
        searcher=SearcherContext(distributed, train, length, is_local=cluster is None),
        profiler=ProfilerContext(distributed, link),
        tensorboard=tensorboard,
        checkpoint=CheckpointContext(
            distributed,
            link,
            store,
            cluster,
            train.find_validation,
            beat=beat,
        ),
        preempt=PreemptContext(distributed, link, preempt_mode, beat),
        info=cluster,
        link=link,
        beat=beat,
    )


def _marker_of(cluster: ClusterInfo | None, storage_url: str) -> str:
    """Returns the marker of the cluster's storage; empty for a storage of the script's own choice."""
    return cluster.storage_marker if cluster is not None and storage_url == cluster.storage_url else ""


def _url_of(storage: str | Mapping[str, Any] | None) -> str | None:
    if not isinstance(storage, Mapping):
        return storage
    match storage.get("type"):
        case "shared_fs":
            return str(Path(storage.get("host_path", "/")) / (storage.get("storage_path") or ""))
        case "directory":
            return str(storage.get("container_path"))
        case storage_type:
            raise invalid(
                "core.storage",
                f"checkpoint_storage of type {storage_type!r}: give an fsspec URL instead, as in s3://bucket/prefix",
            )
