"""PURE: the one table of strategies by which a trial is spread over its slots.

Checks at submit, the ranks' choice of a strategy and messages read their facts here. A new strategy gets a row, a check
of its own in spread.py where the row cannot say it, and a class in gangline.pytorch.parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StrategyName = Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"]
# How parameters lie on the slots: on one slot alone, whole on each, divided over all of them, or layer by layer. `auto`
# chooses one of the others.
Family = Literal["single", "replicated", "sharded", "staged", "any"]


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """options: keys of the section `parallelism` that the strategy knows. script_options: further options of torch's
    class, for scripts that pass their configuration themselves. fewest_slots: the least number of slots of a trial.
    slots_multiple: the number of slots is a multiple of it. ranks_per_replica: how many ranks train on the same
    records, as parts of one data replica; the class answers the same in `Strategy.replica_of`."""

    name: StrategyName
    family: Family
    options: tuple[str, ...] = ()
    script_options: tuple[str, ...] = ()
    fewest_slots: int = 1
    slots_multiple: int = 1
    ranks_per_replica: int = 1
    is_built: bool = True


_DDP_OPTIONS = ("find_unused_parameters", "static_graph")
_STAGE_OPTIONS = ("stages", "microbatches", "schedule", "split")

STRATEGIES: dict[str, StrategyRow] = {
    row.name: row
    for row in (
        StrategyRow("none", "single"),
        StrategyRow("ddp", "replicated", _DDP_OPTIONS, ("broadcast_buffers",)),
        StrategyRow("zero1", "replicated", _DDP_OPTIONS, ("broadcast_buffers",), fewest_slots=2),
        StrategyRow("zero2", "sharded", ("blocks",), fewest_slots=2),
        StrategyRow("zero3", "sharded", ("blocks",), fewest_slots=2),
        # Equal copies of a divided trial: at least two copies of two slots.
        StrategyRow("hsdp", "sharded", ("blocks",), fewest_slots=4, slots_multiple=2),
        StrategyRow("auto", "any", (*_STAGE_OPTIONS, *_DDP_OPTIONS, "blocks"), is_built=False),
        StrategyRow("pipeline", "staged", _STAGE_OPTIONS, is_built=False),
    )
}
BUILT = tuple(row.name for row in STRATEGIES.values() if row.is_built)


def is_sharded(strategy: str) -> bool:
    """Whether the strategy divides parameters over the slots, so that gradients do not go through DDP."""
    row = STRATEGIES.get(strategy)
    return row is not None and row.family == "sharded"


def owners_of(option: str) -> tuple[str, ...]:
    """Returns the strategies that know this key of the section `parallelism`, without `auto`."""
    return tuple(row.name for row in STRATEGIES.values() if option in row.options and row.family != "any")
