"""PURE: checks whether a living experiment's configuration could have contained a change of its resources.

The commands, the gateway and the scheduler call it before they accept such a change.
"""

from __future__ import annotations

import math

from gangline.domain.experiment import ResourceChange
from gangline.errors import invalid

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
