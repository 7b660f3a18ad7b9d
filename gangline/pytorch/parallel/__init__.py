"""How one trial is spread over its ranks: one file for each strategy, all behind `Strategy`."""

from gangline.pytorch.parallel.choice import choose_strategy
from gangline.pytorch.parallel.strategy import Replica, Strategy

__all__ = ["Replica", "Strategy", "choose_strategy"]
