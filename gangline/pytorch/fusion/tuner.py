"""Finds the buckets with which a trial's steps are shortest, while it trains, and remembers them.

Tuning is one generator on every rank, which resumes at each optimizer step: recall, else profile, link, race; then
watch. All ranks run it in step and decide from the same numbers. A decision is made at a step number, never at a time.
The decisions themselves are in the pure modules beside this one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from random import Random
from typing import Any

from gangline.domain.fusion import FusionRecord
from gangline.pytorch.fusion import probe
from gangline.pytorch.fusion.agreement import agree_on_any, agree_on_choice, is_same_everywhere
from gangline.pytorch.fusion.bandwidth_watch import Watch
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, partition_by_caps
from gangline.pytorch.fusion.bucketed import HAS_CAP_LIST
from gangline.pytorch.fusion.budget import (
    LEAST_COMMUNICATION_RATIO,
    TURN_STEPS,
    WARMUP_STEPS,
    Budget,
    budget_of,
    least_gain_ratio,
)
from gangline.pytorch.fusion.candidate import Candidate, Model, choose, propose, refine
from gangline.pytorch.fusion.course import Course, Profile
from gangline.pytorch.fusion.memory import FusionMemory
from gangline.pytorch.fusion.meter import Step
from gangline.pytorch.fusion.race import DEFAULT, Race, is_still_good
from gangline.pytorch.fusion.simulation import busy_seconds
from gangline.pytorch.fusion.situation import Recall, Situation

_GUARD_AFTER_STEPS = 20
# Steps between two all-reduces in which the ranks agree whether to tune again.
_WATCH_STEPS = 100
_MODEL_OFF_RATIO = 1.10
# One round of three arms, and one of the default and the best.
_SECOND_RACE_STEPS = 5 * TURN_STEPS
_LEAST_PROBE_SECONDS = 0.3
_log = logging.getLogger("gangline")


@dataclass(frozen=True, slots=True)
class TunerContext:
    """Arguments of a tuner."""

    steps_left: int  # optimizer steps that this process has before it
    aggregation_frequency: int
    channels: int  # number of exchanges that the backend works on at a time
    trial_id: str
    # called on the chief with the record, the number of buckets, and whether the record was recalled
    tell: Callable[[FusionRecord, int, bool], None]


class Tuner:
    """Tunes on one rank. record: the source of the buckets in place; None until tuning has decided."""

    def __init__(
        self, course: Course, situation: Situation, recall: Recall, memory: FusionMemory, context: TunerContext
    ) -> None:
        self.record: FusionRecord | None = None
        self._course = course
        self._situation = situation
        self._recall = recall
        self._memory = memory
        self._context = context
        self._steps_to_rest = 0
        self._phases: Iterator[None] = self._run()
        self._go_on()

    def on_step(self) -> None:
        """Continues tuning. Called by all ranks after each optimizer step, before the next forward pass."""
        if self._course.model.is_outdated:
            self.close()
        if self._steps_to_rest:
            self._steps_to_rest -= 1
            self._course.pass_over_step()
            return
        self._course.end_step()
        self._go_on()

    def rest(self, steps: int) -> None:
        """Pauses measuring for so many steps, in which the buckets stay as they are. Called by all ranks in step. A
        running rest never gets shorter.
        """
        self._steps_to_rest = max(self._steps_to_rest, steps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: plain values, empty until tuning has decided."""
        return {**asdict(self.record), "bucket_bytes": list(self.record.bucket_bytes)} if self.record else {}

    def close(self) -> None:
        """Ends tuning without changing the training, and removes all hooks. May be called twice."""
        self._phases = repeat(None)
        self._course.meter.close()

    def _go_on(self) -> None:
        try:
            next(self._phases)
        except StopIteration:
            self.close()

    # The phases of tuning. Invariant: one yield is one optimizer step, on every rank alike.

    def _run(self) -> Iterator[None]:
        budget = budget_of(self._context.steps_left)
        is_kept = False
        if self._recall.exact is not None:
            self._apply(self._recall.exact)
            is_kept = not budget.is_open or (yield from self._guard(self._recall.exact))
        if not budget.is_open:
            return
        if not is_kept:
            yield from self._course.steps(WARMUP_STEPS)
            yield from self._tune(budget)
        while self.record is not None:
            yield from self._watch()
            budget = budget_of(self._context.steps_left - self._course.num_steps)
            if not budget.is_open:
                return
            self._course.model.rewrap(DEFAULT_CAPS)
            yield from self._course.steps(WARMUP_STEPS)
            yield from self._tune(budget)

    def _apply(self, record: FusionRecord) -> None:
        if not record.is_default:
            self._course.model.rewrap(record.bucket_bytes)
        self.record = record
        self._context.tell(record, self._num_buckets(record), True)

    def _guard(self, record: FusionRecord) -> Generator[None, None, bool]:
        """Compares a recalled partition once with the default. Returns False, and forgets the record, where it is
        slower here.
        """
        if record.is_default:
            return True
        yield from self._course.steps(_GUARD_AFTER_STEPS)
        arms = {DEFAULT: DEFAULT_CAPS, 1: record.bucket_bytes}
        race = Race([1, 1], TURN_STEPS, 2 * TURN_STEPS)
        order = race.order(self._rng())
        race.take((yield from self._course.round([(arm, arms[arm]) for arm in order])))
        if agree_on_choice(self._course.distributed, int(is_still_good(race.ratios(1)))):
            self._course.model.rewrap(record.bucket_bytes)
            return True
        _log.info("fusion: the recalled buckets are slower than the default here; tuning again")
        if self._course.distributed.is_chief:
            self._memory.forget(record.key)
        self.record = None
        self._course.model.rewrap(DEFAULT_CAPS)
        return False

    def _tune(self, budget: Budget) -> Generator[None, None, None]:
        """Tunes with the default in place. Sets the record, unless the gradients cannot be tuned."""
        course, began = self._course, self._course.num_steps
        profile = yield from course.profile()
        if profile is None:
            self._give_up("gradients do not come once a step, or not in the same order on all ranks")
            return
        course.meter.listen_to_last(profile.order[-1])
        model = self._model(profile)
        if model is None:
            self._give_up("the link could not be measured")
            return
        arms = self._arms(model, budget)
        if not is_same_everywhere(course.distributed, tuple((arm.caps, arm.partition) for arm in arms)):
            self._give_up("the ranks do not agree on the candidates")
            return
        chosen, race = yield from self._race_and_refine(model, arms, budget)
        course.model.rewrap(chosen.caps)
        self._conclude(model, chosen, race, course.num_steps - began)

    def _race_and_refine(
        self, model: Model, arms: Sequence[Candidate], budget: Budget
    ) -> Generator[None, None, tuple[Candidate, Race]]:
        """Returns the chosen candidate, and the race that chose it. The first of the arms is the default.

        A second race, with a neighbour of an unexpected winner, uses the steps that the first one leaves. It counts
        only when its winner is accepted.
        """
        race = yield from self._race(arms, budget.race_steps)
        winner = agree_on_choice(self._course.distributed, race.winner())
        steps_left = budget.race_steps - race.steps_used
        if winner == DEFAULT or steps_left < _SECOND_RACE_STEPS:
            return arms[winner], race
        expected = min(range(1, len(arms)), key=lambda arm: arms[arm].expected_seconds)
        is_model_off = race.seconds(expected) > _MODEL_OFF_RATIO * race.seconds(winner)
        neighbour = refine(model, arms[winner], arms[expected]) if is_model_off else None
        if neighbour is None:
            return arms[winner], race
        second_arms = [arms[DEFAULT], arms[winner], neighbour]
        second = yield from self._race(second_arms, steps_left)
        proven = agree_on_choice(self._course.distributed, second.winner())
        return (arms[winner], race) if proven == DEFAULT else (second_arms[proven], second)

    def _race(self, arms: Sequence[Candidate], steps: int) -> Generator[None, None, Race]:
        race = Race([arm.num_buckets for arm in arms], TURN_STEPS, steps)
        rng = self._rng()
        while not race.is_over:
            order = [(arm, arms[arm].caps) for arm in race.order(rng)]
            race.take((yield from self._course.round(order)))
        return race

    def _watch(self) -> Generator[None, None, None]:
        """Returns when the cost of exchanges has changed permanently."""
        watch, waiting = Watch(), deque[Step]()
        meter = self._course.meter
        while True:
            for _ in range(_WATCH_STEPS):
                waiting += yield from self._course.steps(1)
                while waiting and meter.clock.has_passed(waiting[0].end):
                    step = waiting.popleft()
                    watch.update(meter.exposed_seconds(step), meter.compute_seconds(step))
            if agree_on_any(self._course.distributed, watch.is_due):
                _log.info("fusion: exchanges take another time than when the buckets were chosen; tuning again")
                return

    # The parts of the phases.

    def _model(self, profile: Profile) -> Model | None:
        course = self._course
        budget_seconds = max(_LEAST_PROBE_SECONDS, profile.default_seconds)
        link = probe.measure_link(course.distributed, course.device, budget_seconds, profile.gradients.total_bytes)
        if link is None:
            return None
        return Model(
            gradients=profile.gradients,
            link=link,
            channels=self._context.channels,
            default_seconds=profile.default_seconds,
            keeps_first_buckets=course.model.keeps_first_buckets,
            has_cap_list=HAS_CAP_LIST,
        )

    def _arms(self, model: Model, budget: Budget) -> list[Candidate]:
        """Returns the default and its challengers; the default alone where no race can pay."""
        default = model.default()
        busy = busy_seconds(model.gradients, default.partition, model.link)
        proposals = propose(model, [record.bucket_bytes for record in self._recall.related])
        gain = model.default_seconds - min(
            (candidate.expected_seconds for candidate in proposals), default=model.default_seconds
        )
        least_gain = least_gain_ratio(self._context.aggregation_frequency) * model.default_seconds
        if busy < LEAST_COMMUNICATION_RATIO * model.default_seconds or gain < least_gain:
            return [default]
        return [default, *choose(model, proposals, budget.num_challengers)]

    def _conclude(self, model: Model, chosen: Candidate, race: Race, steps: int) -> None:
        is_default = chosen.kind == "default"
        has_raced = race.num_rounds > 0
        default_seconds = race.seconds(DEFAULT) if has_raced else model.default_seconds
        rate = model.link.bytes_per_second
        situation = replace(self._situation, link=model.link)
        self.record = FusionRecord(
            key=situation.key,
            summary=situation.summary,
            bucket_bytes=() if is_default else chosen.caps,
            default_step_seconds=default_seconds,
            tuned_step_seconds=default_seconds if is_default else race.seconds(race.best_challenger),
            num_pairs=len(race.ratios(race.best_challenger)) if has_raced else 0,
            steps=steps,
            alpha_seconds=model.link.alpha_seconds,
            bytes_per_second=rate if rate < float("inf") else 0.0,
            batch_size=situation.batch_size,
            flags=situation.flags,
            total_bytes=model.gradients.total_bytes,
            trial_id=self._context.trial_id,
            created_at=time.time(),
        )
        if self._course.distributed.is_chief:
            self._memory.keep(self.record)
        self._context.tell(self.record, chosen.num_buckets, False)

    def _give_up(self, why: str) -> None:
        self.record = None
        self._course.model.rewrap(DEFAULT_CAPS)
        if self._course.distributed.is_chief:
            _log.warning("fusion: not tuned: %s; torch's own buckets are kept", why)

    def _num_buckets(self, record: FusionRecord) -> int:
        caps = DEFAULT_CAPS if record.is_default else record.bucket_bytes
        return len(partition_by_caps(self._course.model.num_bytes[::-1], caps, self._course.model.kinds[::-1]))

    def _rng(self) -> Random:
        """Returns a generator of random numbers that is the same on all ranks."""
        return Random(f"{self._situation.family}/{self._course.num_steps}")  # noqa: S311  an order, no secret
