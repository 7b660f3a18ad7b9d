"""PURE: decides whether a strategy can spread a trial over the requested slots.

Submit calls it before anything is launched; the ranks use `slots_conflict`.
"""

from __future__ import annotations

import difflib

from gangline.config.complaint import Complaint
from gangline.config.experiment import ExperimentConfig
from gangline.config.strategy_table import BUILT, STRATEGIES


def find_spread_conflict(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint when the strategy cannot spread this experiment over its slots."""
    strategy, slots = config.parallelism.strategy, config.resources.slots_per_trial
    if not STRATEGIES[strategy].is_built:
        return Complaint("not_supported", ("parallelism",), unknown_strategy(strategy))
    text = slots_conflict(strategy, slots, "resources.slots_per_trial is")
    return None if text is None else Complaint("invalid_value", ("parallelism",), text)


def slots_conflict(strategy: str, slots: int, what: str) -> str | None:
    """Returns why the strategy cannot use that many slots; None when it can. what: the words before their number, as in
    "resources.slots_per_trial is"."""
    row = STRATEGIES[strategy]
    if row.family == "single" and slots > 1:
        return f"{strategy} trains on one slot, but {what} {slots}; use ddp"
    if slots % row.ranks_per_replica != 0:
        nearest = slots + row.ranks_per_replica - slots % row.ranks_per_replica
        return (
            f"{strategy} trains each replica on {row.ranks_per_replica} slots, but {what} {slots}, no multiple of "
            f"that; use {nearest} slots"
        )
    if slots >= row.fewest_slots and slots % row.slots_multiple == 0:
        return None
    if row.slots_multiple == 1:
        return (
            f"{strategy} divides the state of a trial over its slots, but {what} {slots}; use none, or at least "
            f"{row.fewest_slots} slots"
        )
    nearest = max(row.fewest_slots, slots + slots % row.slots_multiple)
    instead = "none" if slots < 2 else "zero3"
    return (
        f"{strategy} needs an even number of slots, at least {row.fewest_slots}, because it makes equal copies of a "
        f"divided trial, but {what} {slots}; use {instead}, or {nearest} slots"
    )


def unknown_strategy(name: str) -> str:
    """Returns the message about a strategy that this version does not have."""
    if name in STRATEGIES:
        return f"{name} is not built yet; this version has {', '.join(BUILT)}"
    nearest = difflib.get_close_matches(name, BUILT, n=2)
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"there is no strategy {name!r}; {advice}this version has {', '.join(BUILT)}"
