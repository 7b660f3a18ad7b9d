"""`determined.pytorch.experimental`: a dataset is processed batch by batch on all ranks, and continues after a restart.

Owns the division of batches over ranks, and the count of those that are done, which its checkpoints hold. The
processor, a class of the user's, owns what happens with a batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchLoader

from gangline import core
from gangline.core import DistributedContext
from gangline.core.temporary import temporary_folder
from gangline.errors import invalid
from gangline.pytorch import MetricReducer, adapt_batch_sampler, to_device
from gangline.pytorch.group import choose_device, open_group
from gangline.pytorch.metrics.reducer import Reducers

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "get_default_device", "torch_batch_process"]
_OUTPUT = "default_output_uuid"
_SIZE = "world_size"


class TorchBatchProcessorContext:
    """The context that a processor gets. device: of this rank. output_url: the folder of this rank in the trial's
    storage."""

    def __init__(self, core_context: core.Context, output_url: str) -> None:
        self.device = choose_device()
        self.reducers = Reducers(core_context.distributed)
        self._core = core_context
        self._output_url = output_url

    def get_hparams(self) -> dict[str, Any]:
        """Returns the trial's hyperparameters; none off the cluster."""
        return dict(self._core.info.trial.hparams) if self._core.info is not None else {}

    def to_device(self, data: Any, warned_types: Any = None) -> Any:
        return to_device(data, self.device, warned_types)

    def get_tensorboard_path(self) -> Path:
        return self._core.train.get_tensorboard_path()

    def prepare_model_for_inference(self, model: nn.Module) -> nn.Module:
        """Moves the model to the device, in evaluation mode."""
        model.eval()
        return model.to(self.device)

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = False,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Adds metrics over the data of all ranks, which are reported as a validation at the end. for_training,
        for_validation: accepted, no effect."""
        return self.reducers.wrap(reducer, name, False, True)

    @contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Yields an empty folder. At the end of the block its files are copied to this rank's folder in the trial's
        storage, where they stay until someone removes them."""
        with temporary_folder("output") as directory:
            yield Path(directory)
            filesystem, place = fsspec.core.url_to_fs(self._output_url)
            filesystem.makedirs(place, exist_ok=True)
            filesystem.put(f"{directory}/", place, recursive=True)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports metrics. Chief only."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def get_distributed_rank(self) -> int:
        return self._core.distributed.rank

    def get_distributed_size(self) -> int:
        return self._core.distributed.size


class TorchBatchProcessor:
    """Base class of processors. Its instance is made with a context, on every rank."""

    def __init__(self, context: TorchBatchProcessorContext) -> None: ...

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Processes a batch. batch_idx: counts the batches of this rank."""
        raise NotImplementedError

    def on_checkpoint_start(self) -> None:
        """Called before a checkpoint, on every rank."""

    def on_finish(self) -> None:
        """Called when all batches are done, on every rank."""


def get_default_device(core_context: core.Context) -> torch.device:
    """Returns the GPU of this local rank, else the CPU."""
    return choose_device()


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Any,
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: Mapping[str, Any] | None = None,
    distributed_context: DistributedContext | None = None,
) -> None:
    """Processes a dataset with a length, in its order. Every rank calls it.

    Batch number i goes to rank i modulo the number of ranks. A restart goes on after the newest checkpoint; batches
    since then are processed again. max_batches: of each rank. checkpoint_interval: batches of each rank between two
    checkpoints, at which a preemption is obeyed. Raises GanglineError `batch_process.*`.
    """
    options = dict(dataloader_kwargs or {})
    size = _check(dataset, batch_size, checkpoint_interval, options)
    if distributed_context is None:
        open_group(choose_device())
    if distributed_context is None and dist.is_initialized():
        distributed_context = DistributedContext.from_torch_distributed()
    with core.init(distributed=distributed_context) as context:
        _Processing(context, batch_processor_cls, dataset, size, max_batches, checkpoint_interval, options).run()


def _check(dataset: Any, batch_size: int | None, checkpoint_interval: int, options: dict[str, Any]) -> int:
    """Returns the batch size, and takes it out of the loader's options."""
    if not isinstance(dataset, Sized):
        raise invalid(
            "batch_process.dataset", f"torch_batch_process: {type(dataset).__name__} has no length; define __len__"
        )
    if checkpoint_interval < 1:
        raise invalid("batch_process.interval", f"checkpoint_interval is {checkpoint_interval}; give a number above 0")
    for name in ("sampler", "batch_sampler"):
        if name in options:
            raise invalid("batch_process.loader", f"dataloader_kwargs has {name}, which torch_batch_process makes")
    if options.pop("shuffle", False):
        raise invalid("batch_process.loader", "dataloader_kwargs shuffles; a restart needs the order of the dataset")
    if batch_size is not None and "batch_size" in options:
        raise invalid("batch_process.loader", "batch_size is given twice; leave it out of dataloader_kwargs")
    size = options.pop("batch_size", 1) if batch_size is None else batch_size
    if not isinstance(size, int) or size < 1:
        raise invalid("batch_process.batch_size", f"batch_size is {size!r}; give a number above 0")
    return size


class _Processing:
    """Runs one call of torch_batch_process on this rank."""

    def __init__(
        self,
        context: core.Context,
        processor_class: type[TorchBatchProcessor],
        dataset: Any,
        batch_size: int,
        max_batches: int | None,
        checkpoint_interval: int,
        options: dict[str, Any],
    ) -> None:
        self._core = context
        self._distributed = context.distributed
        self._interval = checkpoint_interval
        self._skip, self._output = self._find_place()
        batches = BatchSampler(SequentialSampler(dataset), batch_size, drop_last=options.pop("drop_last", False))
        # All ranks go through the same number, because they meet at checkpoints; some have one batch less.
        longest = -(-len(batches) // self._distributed.size)
        self._num_batches = longest if max_batches is None or max_batches < 1 else min(longest, max_batches)
        sampler = adapt_batch_sampler(
            batches, skip=self._skip, num_replicas=self._distributed.size, rank=self._distributed.rank
        )
        self._batches = iter(TorchLoader(dataset, batch_sampler=sampler, **options))
        storage_url = context.checkpoint.storage_url
        self._context = TorchBatchProcessorContext(
            context, f"{storage_url}/batch_output/{self._output}/rank_{self._distributed.rank}"
        )
        self._processor = processor_class(self._context)

    def run(self) -> None:
        saved = self._skip
        for number in range(self._skip, self._num_batches):
            batch = next(self._batches, None)
            if batch is not None:
                self._processor.process_batch(batch=batch, batch_idx=number)
            if (number + 1) % self._interval == 0 or number + 1 == self._num_batches:
                saved = number + 1
                self._save(saved)
                if saved < self._num_batches and self._core.preempt.should_preempt():
                    self._report(saved)
                    return
        self._report(saved)
        self._processor.on_finish()
        # No rank ends before all others are done.
        self._distributed.allgather(None)

    def _find_place(self) -> tuple[int, str]:
        """Returns the batches of each rank that are done, and the name of the output's folder."""
        latest = self._core.info.latest_checkpoint if self._core.info is not None else None
        if latest is None:
            return 0, str(self._distributed.broadcast(str(uuid.uuid4())))
        metadata = self._core.checkpoint.get_metadata(latest.id)
        # In an attempt of another size the ranks have other batches; none is left out.
        done = int(metadata["steps_completed"]) * int(metadata.get(_SIZE, self._distributed.size))
        return done // self._distributed.size, str(metadata.get(_OUTPUT, latest.id))

    def _save(self, num_done: int) -> None:
        self._processor.on_checkpoint_start()
        self._distributed.allgather(None)
        if not self._distributed.is_chief:
            return
        metadata = {"steps_completed": num_done, _OUTPUT: self._output, _SIZE: self._distributed.size}
        with self._core.checkpoint.store_path(metadata) as (folder, _):
            (folder / "batch_completed.json").write_text(json.dumps({"batch_completed": num_done}))
        self._core.train.report_progress(num_done / self._num_batches)

    def _report(self, num_done: int) -> None:
        if not self._context.reducers.has_any(is_training=False):
            return
        metrics = self._context.reducers.reduce(is_training=False)
        if self._distributed.is_chief:
            self._core.train.report_validation_metrics(num_done, metrics)
