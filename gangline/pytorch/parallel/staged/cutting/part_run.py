"""The state of one run of a part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gangline.pytorch.parallel.staged.cutting.call_order import CallOrder
from gangline.pytorch.parallel.staged.cutting.watch import ValueWatch, Versions
from gangline.pytorch.parallel.staged.layout import Described


@dataclass(slots=True)
class PartRun:
    """One run of a part."""

    first: int  # index of its first unit
    last: int  # index of its last unit
    received: Any = None  # the value from the part before
    layout: dict[str, Described] = field(default_factory=dict)  # descriptions of the outputs of earlier units' modules
    # outputs of earlier units' modules that came along, by path
    carried: Mapping[str, Any] = field(default_factory=dict)
    keeps: Collection[str] = ()  # paths of modules whose outputs later parts need, and which the run puts into `kept`
    kept: dict[str, Any] = field(default_factory=dict)
    # the model's code changes outputs of modules in place, so later parts get copies from before the change
    copies_outputs: bool = False
    has_own_placeholders: bool = False  # whether no two modules share a placeholder
    watch: ValueWatch = field(default_factory=ValueWatch)  # finds values of other parts where they are needed
    versions: Versions = field(default_factory=Versions)  # notes what is changed in place
    is_checked: bool = False  # whether the run checks the chain, and describes the part's own outputs in `described`
    described: dict[str, Described] = field(default_factory=dict)
    output: Any = None  # the value for the next part, or the model's output
    is_complete: bool = False
    is_begun: bool = False
    order: CallOrder = field(default_factory=CallOrder)  # order of the calls so far
    checkpoint: Any = None  # checkpoint around the newest unit of an earlier part, in a run with checks
    number: int = 0  # number of the draws, as in SharedDraws
    # gets the time of each unit of the part by itself, forward and backward; None if the run measures nothing
    seconds: dict[int, float] | None = None
