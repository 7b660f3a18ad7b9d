"""How DistributedDataParallel exchanges gradients: the cap of its buckets, and what is done to them on the wire.

Owns the registration of torch's communication hooks and PowerSGD's memory, which is another on every rank. Used by the
strategies that are built on DistributedDataParallel. Without postponed annotations, because torch compares those of a
hook with its own classes.
"""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gangline.config.optimization import Compression, Optimizations
from gangline.errors import invalid
from gangline.pytorch.parallel.sparse import sparse_module

_log = logging.getLogger("gangline")
_SMALLEST_CAP_MB = 1 / 2**20


class Exchange:
    """Of one trial; `attach` is called for each wrapper, and again for one that replaces it."""

    def __init__(self, optimizations: Optimizations) -> None:
        self.compression = optimizations.gradient_compression
        self._threshold_mb = optimizations.tensor_fusion_threshold
        self._powersgd: list[PowerSgd] = []
        self._is_compressed: dict[int, bool] = {}

    @property
    def bucket_cap_mb(self) -> float | None:
        """None where the user named no cap."""
        return None if self._threshold_mb is None else max(float(self._threshold_mb), _SMALLEST_CAP_MB)

    @property
    def wire_ratio(self) -> float | None:
        """What is left of a gradient's bytes on the wire; None for PowerSGD, whose memory belongs to the buckets."""
        hook = "fp16" if any(self._is_compressed.values()) else self.compression.hook
        return {None: 1.0, "fp16": 0.5, "bf16": 0.5}.get(hook)

    def options(self) -> dict[str, Any]:
        """Arguments of DistributedDataParallel."""
        # The gradients live in the buckets: that saves one copy of all gradients and its memory.
        fixed: dict[str, Any] = {"gradient_as_bucket_view": True}
        return fixed if self.bucket_cap_mb is None else {**fixed, "bucket_cap_mb": self.bucket_cap_mb}

    def attach(self, wrapper: DistributedDataParallel, replaced: int | None = None) -> None:
        """replaced: which of the earlier wrappers this one takes the place of; None for a further one."""
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
        """What one optimizer asks for the gradients of the number-th wrapper, around this model: fp16 or none, where
        the experiment names no compression. Raises GanglineError `parallelism.compression`."""
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
        """What this rank alone knows and a checkpoint has to keep; empty for most trials. Plain values and tensors."""
        return {"powersgd": [memory.state_dict() for memory in self._powersgd]} if self._powersgd else {}

    def load_rank_state(self, state: dict[str, Any] | None) -> None:
        """state: what this rank saved; None where there is none, as in a world of another size."""
        saved = (state or {}).get("powersgd", [])
        if self._powersgd and len(saved) != len(self._powersgd):
            _log.warning("powersgd starts with an empty memory: the checkpoint holds none for this rank")
            return
        for memory, entry in zip(self._powersgd, saved, strict=False):
            memory.load_state_dict(entry)


class PowerSgd:
    """PowerSGD for one wrapper: torch's state, and the moment from which its hook may run.

    torch makes new buckets after the first step of a wrapper, and PowerSGD's memory belongs to the new ones. The first
    step of a trial goes uncompressed. Where training goes on in the middle, the gradients of the first step are put
    together as the buckets of the checkpoint had them, so that training goes on bit for bit.

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
        """A wrapper of its own begins to train."""
        self.is_first_step = True
        self.layout = {}
        self._parameters = list(wrapper.parameters())
        self._positions = {id(parameter): position for position, parameter in enumerate(self._parameters)}

    def note(self, bucket: dist.GradBucket) -> None:  # type: ignore[name-defined]  # torch's stubs lack it
        """Learns what is in a bucket, once the buckets stay as they are."""
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
        """All gradients of the step are there. torch waits for none of their buckets before that."""
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
            # The hook's later exchanges begin in gloo's threads, which wait for them. Those of several buckets would
            # take all threads, and begin in another order on each rank.
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
        """Another world or cap makes other buckets; what was remembered of the old ones would be added to wrong
        gradients."""
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
        """Empty where gradients cannot be put together so: the model has other parameters now, or a memory's order of
        numbers is not that of its rows."""
        trained = [position for position, one in enumerate(self._parameters) if one.requires_grad]
        if sorted(position for positions in layout.values() for position in positions) != trained:
            return {}
        sizes = {index: sum(self._parameters[one].numel() for one in held) for index, held in layout.items()}
        is_alike = all(sizes.get(index) == error.numel() for index, error in errors.items())
        return layout if is_alike and all(self._parameters[one].is_contiguous() for one in trained) else {}


class _Regrouped:
    """As torch's GradBucket, for what PowerSGD's hook asks of one."""

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
        """Parts of the buffer."""
        parts = torch.split(self._buffer, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def is_last(self) -> bool:
        return self._is_final


def _fp16(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
    """torch cannot add up sparse tensors of fp16."""
    if bucket.buffer().is_sparse:
        return default_hooks.allreduce_hook(_world(), bucket)
    return default_hooks.fp16_compress_hook(_world(), bucket)


def _bf16(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]  # torch's stubs lack it
    """torch knows its own hook by name and refuses it without CUDA, though gloo carries bfloat16."""
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
