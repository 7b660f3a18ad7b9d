"""Which sizes below slots_per_trial a configuration allows, and what is said of one that allows none."""

from __future__ import annotations

import pytest

from gangline.config import parse_config
from gangline.config.elastic import sizes_of, smaller_sizes
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError

TEXT = """
entrypoint: model_def:Trial
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
parallelism: {strategy}
resources: {{slots_per_trial: {slots}, min_slots_per_trial: {fewest}}}
"""


def _no_size(fewest: int, slots: int, strategy: str, advice: str) -> str:
    return (
        f"with {fewest} there is no smaller size for {slots} slots_per_trial and the strategy {strategy}: a smaller "
        f"size divides slots_per_trial, and the strategy can use it; {advice}, or change slots_per_trial"
    )


@pytest.mark.parametrize(
    ("slots", "fewest", "strategy", "sizes"),
    [
        (8, 1, "ddp", (4, 2, 1)),
        (8, 3, "ddp", (4,)),
        (8, 1, "zero3", (4, 2)),
        (8, 1, "hsdp", (4,)),
        (12, 2, "ddp", (6, 4, 3, 2)),
        (7, 1, "ddp", (1,)),
        (4, 4, "ddp", ()),
        (2**62, 1, "ddp", tuple(2 ** (62 - power) for power in range(1, 11))),
    ],
)
def test_a_smaller_size_divides_the_full_one_and_the_strategy_can_use_it(
    slots: int, fewest: int, strategy: str, sizes: tuple[int, ...]
) -> None:
    assert smaller_sizes(slots, fewest, strategy) == sizes
    config, _ = parse_config(TEXT.format(slots=slots, fewest=fewest, strategy=strategy))
    assert sizes_of(settle_values(config)) == sizes


def test_without_a_minimum_there_is_one_size() -> None:
    config, _ = parse_config(TEXT.format(slots=4, fewest="null", strategy="ddp"))
    assert sizes_of(settle_values(config)) == ()


@pytest.mark.parametrize(
    ("slots", "fewest", "strategy", "message"),
    [
        (4, 8, "ddp", "8 is above the 4 slots of slots_per_trial; use at most 4, or leave it out"),
        (7, 2, "ddp", _no_size(2, 7, "ddp", "use at most 1")),
        (2, 1, "zero1", _no_size(1, 2, "zero1", "leave it out")),
    ],
)
def test_one_line_says_what_is_wrong(slots: int, fewest: int, strategy: str, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(TEXT.format(slots=slots, fewest=fewest, strategy=strategy))
    assert caught.value.code == "config.invalid_value"
    assert caught.value.message == f"resources.min_slots_per_trial (line 5): {message}"


@pytest.mark.parametrize("fewest", ["0", "-1", "two", "1.5"])
def test_the_minimum_is_a_number_of_slots(fewest: str) -> None:
    with pytest.raises(GanglineError, match=r"^resources.min_slots_per_trial \(line 5\): "):
        parse_config(TEXT.format(slots=4, fewest=fewest, strategy="ddp"))
