"""PURE: judges choices of `parallelism: auto` by measured steps, for benchmarks/auto_choice.py.

A case is a trial on a link. Its rows are measured once in each run, whatever the memory. A level of memory decides
which rows fit, and each level has its own choice.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.config.strategy_choice import CandidateRow, StrategyChoice

# The level without a limit, and the others: the strategies of which no row fits there, and whether rows that recompute
# activations count among them.
AMPLE = "ample"
LEVELS: dict[str, tuple[tuple[str, ...], bool]] = {
    "no plain ddp": (("ddp",), False),
    "no ddp": (("ddp",), True),
    "no ddp, zero1": (("ddp", "zero1"), True),
}
# Links between machines that are slower than this lead the rule of thumb to a pipeline: 10 Gbit, in bytes a second.
_SLOW_LINK = 1.25e9
_ORDER = ("none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline")
_ORDER_OF_SLOW_LINKS = ("none", "ddp", "zero1", "zero2", "pipeline", "hsdp", "zero3")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One level of a case in one run."""

    record: StrategyChoice  # record of the choice
    seconds: Mapping[str, float]  # time of a step, for each row without a limit

    @property
    def fitting(self) -> list[CandidateRow]:
        return [row for row in self.record.rows if not row.refusal]


@dataclass(frozen=True, slots=True)
class Judgment:
    """One level of a case over all runs."""

    fastest: str  # the fitting row with the smallest median
    choices: Mapping[str, int]  # the chosen rows, and how often each was chosen
    ratios: tuple[float, ...]  # for each run, the step of the chosen row over that of the fastest
    ddp_ratios: tuple[float, ...]  # the same for ddp; empty if it does not fit
    thumb_ratios: tuple[float, ...]  # the same for the rule of thumb

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)


def usable_bytes(record: StrategyChoice) -> dict[str, float]:
    """Returns for each level the bytes that a slot may use. record: of a choice without a limit. A level at which the
    same rows fit as at the one before it is left out, and one at which none fits."""
    sizes = [row.bytes["total"] for row in record.rows if not row.refusal]
    found: dict[str, float] = {}
    before = len(sizes)
    for level, (strategies, has_recomputing) in LEVELS.items():
        without = [
            row.bytes["total"]
            for row in record.rows
            if row.strategy in strategies
            and not row.refusal
            and (has_recomputing or row.activation_checkpointing == "none")
        ]
        # Half a byte less than the smallest: sizes are whole.
        limit = min(without, default=0) - 0.5
        num_fitting = sum(size <= limit for size in sizes)
        if 0 < num_fitting < before:
            found[level], before = limit, num_fitting
    return found


def rule_of_thumb(record: StrategyChoice) -> str:
    """Returns the row that the usual order of strategies gives: ddp if it fits, else zero1, zero2, zero3, a pipeline;
    the pipeline before zero3 over slow links between machines. Activations are recomputed only where nothing fits
    without. At least one row fits."""
    is_slow = record.across_rate is not None and record.across_rate < _SLOW_LINK
    order = _ORDER_OF_SLOW_LINKS if is_slow else _ORDER

    def place(row: CandidateRow) -> tuple[bool, int, bool]:
        return row.activation_checkpointing != "none", order.index(row.strategy), row.activation_checkpointing == "full"

    return min((row for row in record.rows if not row.refusal), key=place).name


def judge(outcomes: Sequence[Outcome]) -> Judgment:
    """Returns the judgment of the runs of one level; the same rows fit in each of them."""
    names = [row.name for row in outcomes[0].fitting]
    fastest = min(names, key=lambda name: statistics.median(each.seconds[name] for each in outcomes))
    choices = [each.record.choice for each in outcomes]
    return Judgment(
        fastest,
        {name: choices.count(name) for name in dict.fromkeys(choices)},
        _ratios(outcomes, choices, fastest),
        _ratios(outcomes, ["ddp"] * len(outcomes), fastest) if "ddp" in names else (),
        _ratios(outcomes, [rule_of_thumb(each.record) for each in outcomes], fastest),
    )


def _ratios(outcomes: Sequence[Outcome], names: Sequence[str], fastest: str) -> tuple[float, ...]:
    return tuple(each.seconds[name] / each.seconds[fastest] for each, name in zip(outcomes, names, strict=True))
