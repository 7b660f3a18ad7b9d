"""PURE: decides whether a strategy can spread a trial over the requested slots.

Submit calls it before anything is launched; the ranks use `slots_conflict`.
"""

from __future__ import annotations

import difflib

from gangline.config.complaint import Complaint
from gangline.config.experiment import ExperimentConfig

BUILT = ("none", "ddp", "zero1", "zero2", "zero3", "hsdp")
PLANNED = ("auto", "pipeline")
# Two copies of a trial that is divided over two slots each.
_FEWEST_HSDP_SLOTS = 4


def find_spread_conflict(config: ExperimentConfig) -> Complaint | None:
    """Returns a complaint when the strategy cannot spread this experiment over its slots."""
    strategy, slots = config.parallelism.strategy, config.resources.slots_per_trial
    if strategy in PLANNED:
        return Complaint("not_supported", ("parallelism",), unknown_strategy(strategy))
    text = slots_conflict(strategy, slots, "resources.slots_per_trial is")
    return None if text is None else Complaint("invalid_value", ("parallelism",), text)


def slots_conflict(strategy: str, slots: int, what: str) -> str | None:
    """Returns why the strategy cannot use that many slots; None when it can. what: the words before their number, as in
    "resources.slots_per_trial is"."""
    if strategy == "none" and slots > 1:
        return f"none trains on one slot, but {what} {slots}; use ddp"
    if strategy.startswith("zero") and slots < 2:
        return (
            f"{strategy} divides the state of a trial over its slots, but {what} {slots}; use none, or at least 2 slots"
        )
    if strategy == "hsdp" and (slots < _FEWEST_HSDP_SLOTS or slots % 2):
        nearest = max(_FEWEST_HSDP_SLOTS, slots + slots % 2)
        instead = "none" if slots < 2 else "zero3"
        return (
            f"hsdp needs an even number of slots, at least {_FEWEST_HSDP_SLOTS}, because it makes equal copies of a "
            f"divided trial, but {what} {slots}; use {instead}, or {nearest} slots"
        )
    return None


def unknown_strategy(name: str) -> str:
    """Returns the message about a strategy that this version does not have."""
    if name in PLANNED:
        return f"{name} is not built yet; this version has {', '.join(BUILT)}"
    nearest = difflib.get_close_matches(name, BUILT, n=2)
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"there is no strategy {name!r}; {advice}this version has {', '.join(BUILT)}"
