"""The rig on which tuning runs: training continues, step by step, while buckets are changed and steps are timed.

Owns the wrapper's present buckets. The results of a measurement are the same on all ranks; every call that measures is
a generator, which yields once for each optimizer step that must pass. The tuner uses it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from gangline.core import DistributedContext
from gangline.pytorch.fusion.agreement import agree_on_longest, is_same_everywhere
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.budget import DROPPED_STEPS, KEPT_STEPS, PROFILE_STEPS
from gangline.pytorch.fusion.meter import Meter, Step
from gangline.pytorch.fusion.simulation import Gradients, monotone
from gangline.pytorch.fusion.step_profile import common_order, ready_by_place, reverse_order


@dataclass(frozen=True, slots=True)
class Profile:
    """Gradients of one model with the measured time of a step."""

    gradients: Gradients
    default_seconds: float  # time of one step with the default's buckets
    order: tuple[int, ...]  # parameters in the order in which their gradients are produced


class Course:
    def __init__(
        self, model: BucketedModel, meter: Meter, distributed: DistributedContext, device: torch.device
    ) -> None:
        self.model = model
        self.meter = meter
        self.distributed = distributed
        self.device = device
        self.num_steps = 0
        self._newest = Step()

    def end_step(self) -> None:
        """Ends a step. Called by all ranks after each optimizer step."""
        self._newest = self.meter.end_step()
        self.num_steps += 1

    def pass_over_step(self) -> None:
        """Ends a step that is not measured. Called by all ranks in place of `end_step`."""
        self.meter.end_step()
        self.num_steps += 1

    def steps(self, count: int) -> Generator[None, None, list[Step]]:
        """Returns the next steps; their times can be read once the clock has settled."""
        passed = []
        for _ in range(count):
            yield
            passed.append(self._newest)
        return passed

    def round(
        self, caps_by_arm: Sequence[tuple[int, tuple[int, ...]]]
    ) -> Generator[None, None, dict[int, list[float]]]:
        """Runs one turn for each arm, in this order. Returns the seconds of its steps, the longest of all ranks."""
        steps: list[Step] = []
        for _, caps in caps_by_arm:
            self.model.rewrap(caps)
            turn = yield from self.steps(DROPPED_STEPS + KEPT_STEPS)
            steps += turn[DROPPED_STEPS:]
        seconds = iter(self._agreed_seconds(steps))
        return {arm: [next(seconds) for _ in range(KEPT_STEPS)] for arm, _ in caps_by_arm}

    def profile(self) -> Generator[None, None, Profile | None]:
        """Profiles steps with the buckets that are in place. Returns None where the gradients have no common order on
        all ranks, or are not produced once a step.
        """
        self.meter.listen_to_all()
        steps = yield from self.steps(PROFILE_STEPS)
        self.meter.stop_listening()
        default_seconds = sorted(self._agreed_seconds(steps))[(PROFILE_STEPS - 1) // 2]
        order = self._order([[parameter for parameter, _ in step.gradients] for step in steps])
        if not is_same_everywhere(self.distributed, order) or order is None:
            return None
        observed = [([parameter for parameter, _ in step.gradients], self.meter.ready_seconds(step)) for step in steps]
        ready = agree_on_longest(self.distributed, ready_by_place(order, observed))
        num_bytes, kinds = self.model.num_bytes, self.model.kinds
        gradients = Gradients(
            num_bytes=tuple(num_bytes[parameter] for parameter in order),
            ready_seconds=monotone(ready),
            kinds=tuple(kinds[parameter] for parameter in order),
            wire_ratio=self.model.wire_ratio or 1.0,
        )
        return Profile(gradients, default_seconds, order)

    def _order(self, orders: list[list[int]]) -> tuple[int, ...] | None:
        find = reverse_order if self.model.keeps_first_buckets else common_order
        return find(orders, len(self.model.parameters))

    def _agreed_seconds(self, steps: Sequence[Step]) -> list[float]:
        self.meter.clock.settle()
        return agree_on_longest(self.distributed, [self.meter.seconds(step) for step in steps])
