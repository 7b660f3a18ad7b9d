"""PURE: the strategies that a trace is played with, side by side. A new one needs one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gangline.errors import invalid
from services.scheduler.placement.plan import Plan, plan
from services.scheduler.placement.request.snapshot import (
    Backfill,
    PoolConfig,
    Snapshot,
    default_backfill,
    default_preemption,
)
from services.scheduler.simulator.baseline import plan_by_documented_priority, plan_in_submission_order

POOL = "default"

Decide = Callable[[Snapshot, float], Plan]


@dataclass(frozen=True, slots=True)
class SimulatedStrategy:
    """Describes a strategy."""

    name: str
    config: PoolConfig
    decide: Decide = plan  # the planner, or a baseline
    # whether the first waiting request stays the first, so that delays of its start can be measured
    has_head: bool = False

    @property
    def is_ours(self) -> bool:
        return self.decide is plan


def _ours(
    name: str, policy: str, is_preemption_on: bool | None = None, backfill: Backfill | None = None
) -> SimulatedStrategy:
    """Builds a strategy of our planner. is_preemption_on, backfill: None for the default of such pools."""
    if is_preemption_on is None:
        is_preemption_on = default_preemption(policy)
    if backfill is None:
        backfill = default_backfill(policy, is_preemption_on)
    config = PoolConfig(POOL, policy, is_preemption_on=is_preemption_on, backfill=backfill)
    return SimulatedStrategy(name, config, has_head=policy == "priority")


STRATEGIES: tuple[SimulatedStrategy, ...] = (
    _ours("priority", "priority", is_preemption_on=False),
    _ours("priority, no backfill", "priority", is_preemption_on=False, backfill=False),
    _ours("priority, preemption", "priority"),
    _ours("priority, preemption, no backfill", "priority", backfill=False),
    _ours("fair share", "fair_share"),
    _ours("fair share, no preemption", "fair_share", is_preemption_on=False),
    _ours("round robin", "round_robin"),
    SimulatedStrategy("submission order", PoolConfig(POOL), plan_in_submission_order),
    SimulatedStrategy("documented priority", PoolConfig(POOL), plan_by_documented_priority),
    SimulatedStrategy(
        "documented priority, preemption", PoolConfig(POOL, is_preemption_on=True), plan_by_documented_priority
    ),
)


def choose_strategies(names: Iterable[str]) -> list[SimulatedStrategy]:
    """Returns the named strategies in the order of STRATEGIES. Raises GanglineError `simulation.strategy`."""
    wanted = {name.strip() for name in names}
    unknown = sorted(wanted - {strategy.name for strategy in STRATEGIES})
    if unknown:
        strategy_names = "; ".join(strategy.name for strategy in STRATEGIES)
        raise invalid("simulation.strategy", f"there is no strategy {unknown[0]!r}; there are: {strategy_names}")
    return [strategy for strategy in STRATEGIES if strategy.name in wanted]
