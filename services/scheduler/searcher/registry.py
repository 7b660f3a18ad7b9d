"""PURE: the searchers by the name that `searcher.name` selects."""

from __future__ import annotations

from collections.abc import Callable

from services.scheduler.searcher.grid import Grid
from services.scheduler.searcher.interface import Brief, Searcher
from services.scheduler.searcher.random import Random
from services.scheduler.searcher.single import Single

SEARCHERS: dict[str, Callable[[Brief], Searcher]] = {
    "single": Single,
    "grid": Grid,
    "random": Random,
}
