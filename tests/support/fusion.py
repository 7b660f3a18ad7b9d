"""A model in training whose steps take as long as a test says, for the fusion tuner on ranks that are threads.

Nothing is trained and nothing exchanged: buckets are noted, and times are looked up in what the test gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gangline.core import DistributedContext
from gangline.domain.fusion import FusionRecord
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.cost import LinkCost
from gangline.pytorch.fusion.course import Course
from gangline.pytorch.fusion.meter import Meter, Step
from gangline.pytorch.fusion.situation import Recall, Situation
from gangline.pytorch.fusion.tuner import Tuner, TunerContext
from gangline.pytorch.profile.device_clock import WallClock

LINK = LinkCost(0.001, 1e8)
NUM_TENSORS = 16
TENSOR_BYTES = 1 << 20


class ScriptedModel(BucketedModel):
    """16 tensors of 1 MiB. applied: the caps so far."""

    def __init__(self) -> None:
        self.wire_ratio = 1.0
        self.keeps_first_buckets = False
        self.parameters = [torch.nn.Parameter(torch.empty(0)) for _ in range(NUM_TENSORS)]
        self.applied: list[tuple[int, ...]] = []

    @property
    def num_bytes(self) -> list[int]:
        return [TENSOR_BYTES] * NUM_TENSORS

    @property
    def kinds(self) -> list[int]:
        return [0] * NUM_TENSORS

    @property
    def caps(self) -> tuple[int, ...]:
        return self.applied[-1] if self.applied else DEFAULT_CAPS

    def rewrap(self, caps: tuple[int, ...]) -> None:
        self.applied.append(caps)


class ScriptedMeter(Meter):
    """seconds_of: the time of a step under these caps. order: in which gradients come."""

    def __init__(
        self, model: ScriptedModel, seconds_of: Callable[[tuple[int, ...]], float], order: list[int] | None = None
    ) -> None:
        self.clock = WallClock()
        self.exposed = 0.1
        self.is_closed = False
        self._model = model
        self._seconds_of = seconds_of
        self._order = order or list(reversed(range(NUM_TENSORS)))

    def end_step(self) -> Step:
        """A step holds its time where a real one holds marks."""
        gradients = [(parameter, place / NUM_TENSORS) for place, parameter in enumerate(self._order)]
        return Step(0.0, self.exposed, self._seconds_of(self._model.caps), gradients)

    def seconds(self, step: Step) -> float:
        return float(step.end)

    def exposed_seconds(self, step: Step) -> float:
        return float(step.last_gradient)

    def compute_seconds(self, step: Step) -> float:
        return 0.5

    def listen_to_all(self) -> None: ...

    def stop_listening(self) -> None: ...

    def listen_to_last(self, index: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@dataclass
class ListMemory:
    kept: list[FusionRecord] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def find(self, family: str) -> list[FusionRecord]:
        return self.kept

    def keep(self, record: FusionRecord) -> None:
        self.kept.append(record)

    def forget(self, key: str) -> None:
        self.forgotten.append(key)


@dataclass
class ScriptedTrial:
    """One rank of it. told: what would have been logged, as record, bucket count and whether it was recalled."""

    distributed: DistributedContext
    seconds_of: Callable[[tuple[int, ...]], float] = lambda caps: 2.0 if caps == DEFAULT_CAPS else 1.5
    order: list[int] | None = None
    recall: Recall = field(default_factory=Recall)
    steps_left: int = 10_000
    aggregation_frequency: int = 1
    told: list[tuple[FusionRecord, int, bool]] = field(default_factory=list)
    memory: ListMemory = field(default_factory=ListMemory)
    model: ScriptedModel = field(init=False)
    meter: ScriptedMeter = field(init=False)
    tuner: Tuner = field(init=False)
    num_steps: int = 0

    def __post_init__(self) -> None:
        self.model = ScriptedModel()
        self.meter = ScriptedMeter(self.model, self.seconds_of, self.order)
        course = Course(self.model, self.meter, self.distributed, torch.device("cpu"))
        terms = TunerContext(
            steps_left=self.steps_left,
            aggregation_frequency=self.aggregation_frequency,
            channels=2,
            trial_id="7.1",
            tell=lambda record, num_buckets, is_recalled: self.told.append((record, num_buckets, is_recalled)),
        )
        self.tuner = Tuner(course, situation(), self.recall, self.memory, terms)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.tuner.on_step()
        self.num_steps += steps

    def train_until_decided(self, most: int = 100) -> FusionRecord:
        while self.tuner.record is None:
            assert self.num_steps < most, f"nothing was decided in {most} steps"
            self.train(1)
        return self.tuner.record


def situation(**other: Any) -> Situation:
    values: dict[str, Any] = {
        "parameters": ((TENSOR_BYTES // 4, "torch.float32", True),) * NUM_TENSORS,
        "world_size": 2,
        "ranks_per_host": 1,
        "accelerator": "CPU",
        "fabric": "ethernet 1000 Mbit",
        "backend": "gloo",
        "torch_version": "2.13.0+cpu",
        "flags": "aggregation_frequency=1",
        "batch_size": 32,
        "link": None,
    }
    return Situation(**{**values, **other})


def record(**other: Any) -> FusionRecord:
    """One that fits situation() on LINK."""
    here = situation(link=LINK)
    values: dict[str, Any] = {
        "key": here.key,
        "bucket_bytes": (4 * TENSOR_BYTES,),
        "default_step_seconds": 2.0,
        "tuned_step_seconds": 1.5,
        "num_pairs": 4,
        "steps": 24,
        "alpha_seconds": LINK.alpha_seconds,
        "bytes_per_second": LINK.bytes_per_second,
        "batch_size": here.batch_size,
        "flags": here.flags,
        "total_bytes": NUM_TENSORS * TENSOR_BYTES,
        "trial_id": "3.1",
        "created_at": 1000.0,
    }
    return FusionRecord(**{**values, **other})


NEVER = math.nan
