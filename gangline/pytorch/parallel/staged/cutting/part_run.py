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
    """One run of a part. first, last: its units. received: the value from the part before. layout: descriptions of the
    outputs of earlier units' modules. carried: those outputs of them that came along, by path. keeps: paths of modules
    whose outputs later parts need; they are put into `kept`. output: the value for the next part, or of the model.

    copies_outputs: the model's code changes outputs of modules in place, so later parts get copies from before.
    has_own_placeholders: no two modules share a placeholder.

    watch: finds values of other parts where they are needed. versions: notes what is changed in place. is_checked:
    makes the run check the chain, and describe the part's own outputs in `described`. order: of the calls so far.
    checkpoint: around the newest unit of an earlier part, in a run with checks. number: as in SharedDraws. seconds:
    where it is given, the run measures the part's units in it, each by itself, forward and backward.
    """

    first: int
    last: int
    received: Any = None
    layout: dict[str, Described] = field(default_factory=dict)
    carried: Mapping[str, Any] = field(default_factory=dict)
    keeps: Collection[str] = ()
    kept: dict[str, Any] = field(default_factory=dict)
    copies_outputs: bool = False
    has_own_placeholders: bool = False
    watch: ValueWatch = field(default_factory=ValueWatch)
    versions: Versions = field(default_factory=Versions)
    is_checked: bool = False
    described: dict[str, Described] = field(default_factory=dict)
    output: Any = None
    is_complete: bool = False
    is_begun: bool = False
    order: CallOrder = field(default_factory=CallOrder)
    checkpoint: Any = None
    number: int = 0
    seconds: dict[int, float] | None = None
