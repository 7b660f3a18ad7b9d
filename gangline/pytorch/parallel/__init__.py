"""The choice of the strategy that spreads a trial over its ranks, and recomputation, which works below all strategies.
Each strategy is behind `Strategy`.

Start: choice.py
"""

from gangline.pytorch.parallel.choice import check_choice, choose_strategy, recomputation_of
from gangline.pytorch.parallel.recomputation import recompute
from gangline.pytorch.parallel.recomputed import log_left_out
from gangline.pytorch.parallel.shared.strategy import Replica, Strategy

__all__ = ["Replica", "Strategy", "check_choice", "choose_strategy", "log_left_out", "recomputation_of", "recompute"]
