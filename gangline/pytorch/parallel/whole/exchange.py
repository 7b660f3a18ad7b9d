"""Configures how DistributedDataParallel exchanges gradients: the cap of its buckets, and their compression.

Owns the registration of torch's communication hooks and PowerSGD's memory, which differs on every rank. Used by the
strategies that are built on DistributedDataParallel. The module does without postponed annotations, because torch
compares those of a hook with its own classes.
"""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gangline.config.optimization import Compression, Optimizations
from gangline.errors import invalid
from gangline.pytorch.parallel.shared.strategy import sparse_module

_log = logging.getLogger("gangline")
# One byte, in MB: a threshold of 0 gives each gradient a bucket of its own.
_SMALLEST_CAP_MB = 1 / 2**20


class Exchange:
    """Configures the exchange of one trial. `attach` is called for each wrapper, and again for one that replaces it."""

    def __init__(self, optimizations: Optimizations) -> None:
        self.compression = optimizations.gradient_compression
        self._threshold_mb = optimizations.tensor_fusion_threshold
        self._powersgd: list[PowerSgd] = []
        self._is_compressed: dict[int, bool] = {}

    @property
    def bucket_cap_mb(self) -> float | None:
        """Returns the user's cap on a bucket; None where the user named no cap."""
        return None if self._threshold_mb is None else max(float(self._threshold_mb), _SMALLEST_CAP_MB)

    @property
    def wire_ratio(self) -> float | None:
        """Returns the ratio of sent bytes to a gradient's bytes; None for PowerSGD, whose memory belongs to the
        buckets."""
        hook = "fp16" if any(self._is_compressed.values()) else self.compression.hook
        return {None: 1.0, "fp16": 0.5, "bf16": 0.5}.get(hook)

    def options(self) -> dict[str, Any]:
        """Returns arguments of DistributedDataParallel."""
        # Gradients as views of the buckets save one copy of all gradients and its memory.
        fixed: dict[str, Any] = {"gradient_as_bucket_view": True}
        return fixed if self.bucket_cap_mb is None else {**fixed, "bucket_cap_mb": self.bucket_cap_mb}

    def attach(self, wrapper: DistributedDataParallel, replaced: int | None = None) -> None:
        """Registers the compression hook of a wrapper. replaced: index of the earlier wrapper that this one replaces;
        None for an additional one."""
        match self.compression.hook:
            case "fp16":
                wrapper.register_comm_hook(None, _fp16)
            case "bf16":
                wrapper.register_comm_hook(None, _bf16)
            case "powersgd":
                sparse = sparse_module(wrapper.module.module)
                if sparse is not None:
                    raise invalid(
                        "parallelism.compression",
                        f"optimizations.gradient_compression: powersgd cannot send the sparse gradients of {sparse}; "
                        "make it with sparse=False, or use fp16",
                    )
                if replaced is None:
                    self._powersgd.append(PowerSgd(self.compression))
                memory = self._powersgd[-1 if replaced is None else replaced]
                memory.begin(wrapper)
                wrapper.register_comm_hook(memory, _powersgd)
            case None if replaced is not None and self._is_compressed.get(replaced):
                wrapper.register_comm_hook(None, _fp16)

    def compress(self, number: int, wrapper: DistributedDataParallel, is_wanted: bool, model: str) -> None:
        """Applies one optimizer's choice, fp16 or none, to the gradients of the number-th wrapper, where the experiment
        names no compression. model: its name, for errors. Raises GanglineError `parallelism.compression`."""
        is_first = number not in self._is_compressed
        if self._is_compressed.setdefault(number, is_wanted) != is_wanted:
            raise invalid(
                "parallelism.compression",
                f"wrap_optimizer: one optimizer of {model} has fp16_compression=True and another one has not, but the "
                "gradients of a model travel together; pass it to both, or to none",
            )
        if is_first and is_wanted:
            wrapper.register_comm_hook(None, _fp16)

    def rank_state(self) -> dict[str, Any]:
        """Returns this rank's own state for a checkpoint, as plain values and tensors; empty for most trials."""
        return {"powersgd": [memory.state_dict() for memory in self._powersgd]} if self._powersgd else {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """Loads the state that this rank saved; None where there is none, as in a world of another size."""
        saved = (state or {}).get("powersgd", [])
        if self._powersgd and len(saved) != len(self._powersgd):
            _log.warning("powersgd starts with an empty memory: the checkpoint holds none for this rank")
            return
        for memory, entry in zip(self._powersgd, saved, strict=False):
            memory.load_state_dict(entry)


class PowerSgd:
    """Runs PowerSGD for one wrapper: keeps torch's state, and the moment from which its hook may run.

    torch makes new buckets after the first step of a wrapper, and PowerSGD's memory belongs to the new ones. The first
    step of a trial is therefore sent uncompressed. Where training resumes in the middle, the gradients of the first
    step are grouped into the buckets of the checkpoint, so that training resumes bit for bit.

    layout: by bucket, the positions of its gradients' parameters among the wrapper's.
    """

    _MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")

    def __init__(self, compression: Compression) -> None:
        self.state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=compression.rank,
            start_powerSGD_iter=compression.start_step,
        )
        self.is_first_step = True
        self.layout: dict[int, list[int]] = {}
        self._saved_layout: dict[int, list[int]] = {}
        self._parameters: list[torch.nn.Parameter] = []
        self._positions: dict[int, int] = {}
        self._held: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]] = []
        self._gradients: dict[int, torch.Tensor] = {}

    def begin(self, wrapper: DistributedDataParallel) -> None:
        """Starts over for a wrapper that begins to train."""
        self.is_first_step = True
        self.layout = {}
        self._parameters = list(wrapper.parameters())
        self._positions = {id(parameter): position for position, parameter in enumerate(self._parameters)}

    def note(self, bucket: dist.GradBucket) -> None:  # type: ignore[name-defined]  # torch's stubs lack it
        """Records the content of a bucket. Called once the buckets no longer change."""
        if bucket.index() not in self.layout:
            self.layout[bucket.index()] = self._positions_in(bucket)

    def first_step(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
        """Sends a bucket of the first step of this process."""
        self.is_first_step = not bucket.is_last()
        if self.state.iter < self.state.start_powerSGD_iter or not self._saved_layout:
            self.state.maybe_increase_iter(bucket)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return default_hooks.allreduce_hook(_world(), bucket)
        self._held.append((bucket.buffer(), torch.futures.Future()))
        self._gradients |= dict(zip(self._positions_in(bucket), bucket.gradients(), strict=True))
        future = self._held[-1][1]
        if bucket.is_last():
            self._send_as_before()
        return future

    def _positions_in(self, bucket: dist.GradBucket) -> list[int]:  # type: ignore[name-defined]  # torch's stubs lack it
        return [self._positions[id(parameter)] for parameter in bucket.parameters()]

    def _send_as_before(self) -> None:
        """Sends the gradients in the checkpoint's buckets, once all gradients of the step are present. torch waits for
        none of their buckets before that."""
        for index, positions in sorted(self._saved_layout.items()):
            gradients = [self._gradients[position] for position in positions]
            shapes = [gradient.shape for gradient in gradients]
            buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
            bucket = _Regrouped(index, buffer, shapes, is_final=index == max(self._saved_layout))
            self.compress(bucket).wait()
            for gradient, sent in zip(gradients, bucket.gradients(), strict=True):
                gradient.copy_(sent)
        for buffer, future in self._held:
            future.set_result(buffer)
        self._held, self._gradients = [], {}

    def compress(self, bucket: "dist.GradBucket | _Regrouped") -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
        """Sends a bucket as low-rank matrices."""
        self._prepare(bucket)
        future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        if bucket.buffer().device.type == "cpu":
            # gloo runs the hook's later exchanges in its own threads, and these wait for them. Exchanges of several
            # buckets would take all threads, and would begin in another order on each rank.
            future.wait()
        return future

    def _prepare(self, bucket: "dist.GradBucket | _Regrouped") -> None:  # type: ignore[name-defined]  # torch's stubs lack it
        buffer = bucket.buffer()
        self.forget_other_buckets(bucket.index(), buffer.numel())
        for name in self._MEMORIES:
            kept = getattr(self.state, name)
            if bucket.index() in kept and kept[bucket.index()].device != buffer.device:
                kept[bucket.index()] = kept[bucket.index()].to(buffer.device)

    def forget_other_buckets(self, index: int, size: int) -> None:
        """Clears the memory if a bucket has another size. Another world or cap makes other buckets, and the memory of
        the old ones would be added to wrong gradients."""
        error = self.state.error_dict.get(index)
        if error is not None and error.numel() != size:
            for name in self._MEMORIES:
                getattr(self.state, name).clear()

    def state_dict(self) -> dict[str, Any]:
        memories = {name: dict(getattr(self.state, name)) for name in self._MEMORIES}
        return {"iter": self.state.iter, "layout": dict(self.layout or self._saved_layout), **memories}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.state.iter = saved["iter"]
        for name in self._MEMORIES:
            getattr(self.state, name).update(saved[name])
        self._saved_layout = self._fitting(saved.get("layout", {}), saved["error_dict"])

    def _fitting(self, layout: dict[int, list[int]], errors: dict[int, torch.Tensor]) -> dict[int, list[int]]:
        """Returns the layout; empty where gradients cannot be grouped that way. Either the model has other parameters
        now, or a parameter is not contiguous, so its memory order differs from the order of its rows."""
        trained = [position for position, parameter in enumerate(self._parameters) if parameter.requires_grad]
        if sorted(position for positions in layout.values() for position in positions) != trained:
            return {}
        sizes = {
            index: sum(self._parameters[position].numel() for position in positions)
            for index, positions in layout.items()
        }
        is_alike = all(sizes.get(index) == error.numel() for index, error in errors.items())
        return layout if is_alike and all(self._parameters[position].is_contiguous() for position in trained) else {}


class _Regrouped:
    """Stands for torch's GradBucket, with the methods that PowerSGD's hook calls."""

    def __init__(self, index: int, buffer: torch.Tensor, shapes: list[torch.Size], is_final: bool) -> None:
        self._index = index
        self._buffer = buffer
        self._shapes = shapes
        self._is_final = is_final

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Returns views into the buffer."""
        parts = torch.split(self._buffer, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def is_last(self) -> bool:
        return self._is_final


def _fp16(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
    """Compresses to fp16, but sends sparse gradients uncompressed, because torch cannot add up sparse tensors of
    fp16."""
    if bucket.buffer().is_sparse:
        return default_hooks.allreduce_hook(_world(), bucket)
    return default_hooks.fp16_compress_hook(_world(), bucket)


def _bf16(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
    """Calls torch's bf16 hook. torch recognises its own hook by name and refuses it without CUDA, though gloo carries
    bfloat16."""
    return default_hooks.bf16_compress_hook(_world(), bucket)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


def _powersgd(memory: PowerSgd, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
    if memory.is_first_step:
        return memory.first_step(bucket)
    memory.note(bucket)
    return memory.compress(bucket)
