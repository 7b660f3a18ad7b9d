"""Begins the tuning of a trial, or logs why there is none. The training loop calls it on every rank in step, once its
models are wrapped and their state is restored; after that the loop calls only the methods of `Fusion`.

Owns the line and the metric group `fusion` that a person reads of the tuning.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from gangline.core.encoding import let_travel
from gangline.domain.fusion import FusionRecord
from gangline.domain.history import MetricsPoint
from gangline.pytorch.fusion import host, probe
from gangline.pytorch.fusion.agreement import agree_on_any
from gangline.pytorch.fusion.bucket_partition import MIB
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.course import Course
from gangline.pytorch.fusion.memory import ClusterMemory, FusionMemory, local_memory, record_from
from gangline.pytorch.fusion.meter import Meter
from gangline.pytorch.fusion.situation import Recall, Situation, recall
from gangline.pytorch.fusion.tuner import Tuner, TunerContext
from gangline.pytorch.profile.device_clock import clock_of
from gangline.pytorch.trial.context import PyTorchTrialContext

# Exchanges that each backend works on at a time.
_GLOO_CHANNELS = 2
_NCCL_CHANNELS = 1
# The chief broadcasts objects of these types to the other ranks.
let_travel(FusionRecord, Recall)
_log = logging.getLogger("gangline")


class Fusion(Protocol):
    """The interface that the training loop uses."""

    def on_step(self) -> None:
        """Called by all ranks after each optimizer step."""
        ...

    def rest(self, steps: int) -> None:
        """Pauses measuring. Called by all ranks in step: the next `steps` steps take longer for a reason other than the
        exchange.
        """
        ...

    def close(self) -> None:
        """Ends tuning at the end of training. May be called twice."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: plain values, empty until tuning has decided."""
        ...


class Untuned:
    """Leaves the buckets as the strategy makes them."""

    def on_step(self) -> None:
        pass

    def rest(self, steps: int) -> None:
        pass

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}


def open_fusion(context: PyTorchTrialContext, steps_left: int, batch_size: int, saved: Mapping[str, Any]) -> Fusion:
    """Returns the tuner, or `Untuned`. steps_left: optimizer steps that this process has before it. batch_size: records
    of one batch of one rank, 0 when unknown. saved: the state in the checkpoint, empty without one.
    """
    if not context.setting.optimizations.auto_tune_tensor_fusion or context.distributed.size == 1:
        return Untuned()
    model = context.strategy.bucketed()
    obstacle = _obstacle(context, model)
    if obstacle is not None or model is None:
        if context.distributed.is_chief:
            _log.info("fusion: not tuned: %s", obstacle)
        return Untuned()
    return make_tuner(context, model, steps_left, batch_size, saved)


def _obstacle(context: PyTorchTrialContext, model: BucketedModel | None) -> str | None:
    threshold_mb = context.setting.optimizations.tensor_fusion_threshold
    if threshold_mb is not None:
        return f"optimizations.tensor_fusion_threshold fixes the buckets at {threshold_mb} MiB"
    if model is None:
        return f"parallelism {context.strategy.name} has no one model whose gradients go out in buckets"
    obstacle = model.obstacle()
    if obstacle is not None:
        return obstacle
    is_full = not host.has_room_for(sum(model.num_bytes), context.device)
    return "a GPU has no memory left for new buckets" if agree_on_any(context.distributed, is_full) else None


def make_tuner(
    context: PyTorchTrialContext, model: BucketedModel, steps_left: int, batch_size: int, saved: Mapping[str, Any]
) -> Tuner:
    distributed, device = context.distributed, context.device
    meter = Meter(model.inner, model.parameters, clock_of(device), lambda: model.is_exchanging)
    # A guess until the profile knows the order: the gradient of the first parameter is usually produced last.
    meter.listen_to_last(0)
    course = Course(model, meter, distributed, device)
    situation = _situation(context, model, batch_size)
    memory = ClusterMemory(context.core.link) if context.core.info else local_memory(os.environ)
    agreed_recall = _recall(context, situation, memory, saved)
    is_nccl = situation.backend.startswith("nccl")
    tuner_context = TunerContext(
        steps_left=steps_left,
        aggregation_frequency=context.setting.optimizations.aggregation_frequency * context.rounds,
        channels=_NCCL_CHANNELS if is_nccl else _GLOO_CHANNELS,
        trial_id=context.get_trial_id(),
        tell=lambda record, num_buckets, is_recalled: _tell(context, record, num_buckets, is_recalled),
    )
    return Tuner(course, situation, agreed_recall, memory, tuner_context)


def _situation(context: PyTorchTrialContext, model: BucketedModel, batch_size: int) -> Situation:
    """Returns the situation without the link, which is not known yet."""
    distributed, optimizations = context.distributed, context.setting.optimizations
    accelerators = sorted(set(distributed.allgather(host.describe_accelerator(context.device))))
    interfaces = sorted(set(distributed.allgather(host.describe_interface())))
    flags = {
        "aggregation_frequency": optimizations.aggregation_frequency * context.rounds,
        "wire_ratio": model.wire_ratio,
        "find_unused_parameters": model.keeps_first_buckets,
    }
    return Situation(
        parameters=tuple(
            (parameter.numel(), str(parameter.dtype), parameter.requires_grad) for parameter in model.inner.parameters()
        ),
        world_size=distributed.size,
        ranks_per_host=distributed.local_size,
        accelerator=", ".join(accelerators),
        fabric=", ".join(interfaces),
        backend=host.backend_of(context.device),
        torch_version=torch.__version__,
        flags=" ".join(f"{name}={value}" for name, value in flags.items()),
        batch_size=batch_size,
        link=None,
    )


def _recall(
    context: PyTorchTrialContext, situation: Situation, memory: FusionMemory, saved: Mapping[str, Any]
) -> Recall:
    """Returns the recall, the same on all ranks. The link is measured only where a record can be compared with it."""
    distributed = context.distributed
    records = memory.find(situation.family) if distributed.is_chief else []
    if saved:
        records.append(record_from(saved))
    records = distributed.broadcast(records)
    if not records:
        return Recall()
    link = probe.measure_link_quickly(distributed, context.device)
    agreed_recall: Recall = distributed.broadcast(recall(replace(situation, link=link), records, time.time()))
    return agreed_recall


def _tell(context: PyTorchTrialContext, record: FusionRecord, num_buckets: int, is_recalled: bool) -> None:
    if not context.distributed.is_chief:
        return
    _log.info("%s", line_of(record, num_buckets, is_recalled))
    # Not sent as a report of the trial, because that would count as its first step.
    metrics = metrics_of(record, num_buckets, is_recalled)
    context.core.link.send_metrics(MetricsPoint("fusion", context.position.batches, metrics))


def line_of(record: FusionRecord, num_buckets: int, is_recalled: bool) -> str:
    """As in "fusion: 13 buckets of ~3 MiB, 1.24x default, 31 steps"."""
    if record.is_default:
        outcome = f"the default of {_buckets(record, num_buckets)} is kept"
    else:
        outcome = f"{_buckets(record, num_buckets)}, {record.gain_ratio:.2f}x default"
    origin = f"trial {record.trial_id}" if record.trial_id else "an earlier trial"
    return f"fusion: {outcome}, {f'recalled from {origin}, which took ' if is_recalled else ''}{record.steps} steps"


def metrics_of(record: FusionRecord, num_buckets: int, is_recalled: bool) -> dict[str, float]:
    return {
        "buckets": num_buckets,
        "bucket_mb": record.total_bytes / num_buckets / MIB,
        "gain_ratio": record.gain_ratio,
        "default_step_seconds": record.default_step_seconds,
        "tuned_step_seconds": record.tuned_step_seconds,
        "steps": record.steps,
        "is_recalled": float(is_recalled),
    }


def _buckets(record: FusionRecord, num_buckets: int) -> str:
    size = record.total_bytes / num_buckets / MIB
    return f"{num_buckets} bucket{'s' if num_buckets > 1 else ''} of ~{size:.2g} MiB"
