"""PURE: the sections `resources`, `reproducibility` and `profiling`, and the check of changes of a living experiment's
resources."""

from __future__ import annotations

import math
import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from gangline.config.section import Section, fault, wrong_type
from gangline.domain.experiment import ResourceChange
from gangline.errors import invalid

_MEMORY_SIZE = re.compile(r"^([0-9]*[.])?[0-9]+ ?(([kmgtp]i?b?)|b)?$", re.IGNORECASE)


class Resources(Section):
    """slots_per_trial: the size of a trial's gang; 0 for a script that computes on no slot. priority: 1 is most urgent;
    None takes the pool's default.

    min_slots_per_trial: the fewest slots on which a trial that has run may go on while it cannot have all of them; None
    for no fewer, see gangline.config.elastic.

    resource_pool: empty takes the default pool. is_single_node: all slots are on one agent, or the trial waits.
    preemptible: false for work that cannot resume from a checkpoint. It is never stopped for other work, and starts
    only where it delays no request that waits longer.
    """

    slots_per_trial: int = Field(default=1, ge=0)
    min_slots_per_trial: int | None = Field(default=None, ge=1)
    max_slots: int | None = Field(default=None, ge=0)
    weight: float = Field(default=1, ge=0)
    priority: int | None = Field(default=None, ge=1, le=99)
    resource_pool: str = ""
    shm_size: int | str | None = None
    is_single_node: bool = False
    preemptible: bool = True
    devices: list[Any] = Field(default_factory=list)
    native_parallel: bool = False
    agent_label: str | None = None
    slots: int | None = Field(default=None, ge=0)

    @field_validator("shm_size", mode="before")
    @classmethod
    def _is_memory_size(cls, value: Any) -> Any:
        is_size = isinstance(value, str) and _MEMORY_SIZE.match(value)
        if is_size or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise wrong_type("a size in bytes, or one as 4GiB", value)


class Reproducibility(Section):
    """experiment_seed: None lets the cluster choose a seed, which the trial then keeps over restarts."""

    experiment_seed: int | None = Field(default=None, ge=0, lt=2**31)


class Profiling(Section):
    enabled: bool = False
    begin_on_batch: int | None = Field(default=None, ge=0)
    end_after_batch: int | None = Field(default=None, ge=0)
    sync_timings: bool = True

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        first, last = self.begin_on_batch, self.end_after_batch
        if first is not None and last is not None and first > last:
            raise fault("invalid_value", f"must be at least begin_on_batch {first}, found {last}", "end_after_batch")
        return self


LEAST_URGENT = 99
MOST_SLOTS = 2**31 - 1


def check_resource_change(change: ResourceChange) -> None:
    """Raises GanglineError `resources.nothing`, `resources.priority`, `resources.weight`, `resources.max_slots`,
    `resources.when_free`."""
    if change.priority is change.weight is change.max_slots is None:
        raise invalid("resources.nothing", "nothing is to be changed; give a priority, a weight or max_slots")
    if change.when_free and not change.max_slots:
        raise invalid(
            "resources.when_free",
            "'when free' says how a lower max_slots takes effect; give it together with max_slots of 1 or more",
        )
    if change.priority is not None and not 1 <= change.priority <= LEAST_URGENT:
        raise invalid(
            "resources.priority", f"priority {change.priority} is out of range; give 1 (most urgent) to {LEAST_URGENT}"
        )
    if change.weight is not None and not (math.isfinite(change.weight) and change.weight >= 0):
        raise invalid("resources.weight", f"weight {change.weight:g} is out of range; give 0 or more")
    if change.max_slots is not None and not 0 <= change.max_slots <= MOST_SLOTS:
        raise invalid(
            "resources.max_slots", f"max_slots {change.max_slots} is out of range; give a number of slots, 0 for no cap"
        )
