"""Training metrics of several ranks become one mean, also when what they report changes."""

from __future__ import annotations

import math

from gangline.core import DistributedContext
from gangline.pytorch.metrics.metric import Averaging
from tests.support.world import in_ranks

REPORTS = [
    # What rank 0 and rank 1 add up: name -> sum and count.
    ({"loss": (6.0, 2), "rare": (1.0, 1)}, {"rare": (3.0, 1), "loss": (2.0, 2)}),
    ({"loss": (1.0, 1), "rare": (5.0, 4)}, {"rare": (1.0, 2), "loss": (5.0, 1)}),
    ({"loss": (1.0, 1), "rare": (5.0, 4)}, {"loss": (5.0, 3)}),
    ({"loss": (math.inf, 1)}, {"loss": (5.0, 1)}),
    ({"loss": (1.0, 2)}, {"loss": (5.0, 1)}),
]
MEANS = [
    {"loss": 2.0, "rare": 2.0},
    {"loss": 3.0, "rare": 1.0},
    {"loss": 1.5, "rare": 1.25},
    {"loss": math.inf},
    {"loss": 2.0},
]


def test_mean_weighs_every_batch_of_every_rank_alike() -> None:
    def work(context: DistributedContext) -> list[dict[str, float]]:
        averaging = Averaging(context)
        return [averaging.average_later([report[context.rank]])()[0] for report in REPORTS]

    assert in_ranks(2, work) == [MEANS, MEANS]


def test_agreed_names_cost_one_reduction() -> None:
    def work(context: DistributedContext) -> int:
        averaging, rounds = Averaging(context), []
        for report in REPORTS[:2]:
            averaging.average_later([report[context.rank]])()
            rounds.append(context._transport._round)  # type: ignore[attr-defined]  # what it has exchanged
        return int(rounds[1] - rounds[0])

    assert in_ranks(2, work) == [1, 1]


def test_alone_nothing_is_exchanged() -> None:
    assert Averaging(DistributedContext()).average_later([{"loss": (6.0, 4)}])() == [{"loss": 1.5}]
