"""Strategies that spread one trial over its ranks: one file for each, all behind `Strategy`."""

from gangline.pytorch.parallel.choice import check_choice, choose_strategy, recomputation_of
from gangline.pytorch.parallel.recomputation import recompute
from gangline.pytorch.parallel.recomputed import log_left_out
from gangline.pytorch.parallel.shared.strategy import Replica, Strategy

__all__ = ["Replica", "Strategy", "check_choice", "choose_strategy", "log_left_out", "recomputation_of", "recompute"]
