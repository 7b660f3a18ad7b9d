"""PURE: the figures of several strategies side by side, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from services.scheduler.simulator.engine import EngineContext
from services.scheduler.simulator.figure import SIZE_CLASSES, Figures
from services.scheduler.simulator.plan_report import align, describe_seconds

_LEGEND = (
    "wait: everything between submission and end that is not its own run time; mean / p95.",
    "utilisation: busy slots, from the first submission to the last.",
    "head: requests that held the reservation / how many of them backfill moved / how many were late on their first "
    "promise, for any cause.",
    "ETA: median error relative to the wait that was left, asked when a request first waits / after 10 minutes / after "
    "an hour.",
)


def describe_stop(context: EngineContext) -> str:
    """Describes the cost of a preemption in virtual time."""
    return (
        f"preemption: who is stopped saves a checkpoint when it is asked to and gives its slots back "
        f"{context.stop_seconds:g} s later; it loses these, and {context.restart_seconds:g} s when it begins again."
    )


def describe_figures(figures: Sequence[Figures]) -> str:
    """Returns lines for a terminal, without a last line break."""
    sizes = [
        name for name, _ in SIZE_CLASSES if any(name in strategy_figures.waits_by_size for strategy_figures in figures)
    ]
    heading = (
        "strategy",
        "wait",
        *(f"{name} slot{'' if name == '1' else 's'}" for name in sizes),
        "utilisation",
        "makespan",
        "preemptions",
        "head",
        "ETA",
    )
    rows = [heading, *(_row(strategy_figures, sizes) for strategy_figures in figures)]
    return "\n".join([*align(rows, frozenset(range(1, len(heading)))), "", *_LEGEND])


def _row(figures: Figures, sizes: Sequence[str]) -> tuple[str, ...]:
    waits = [figures.waits, *(figures.waits_by_size.get(name) for name in sizes)]
    return (
        figures.strategy,
        *("-" if wait is None else f"{_short(wait.mean)} / {_short(wait.p95)}" for wait in waits),
        f"{figures.utilisation:.1%}",
        describe_seconds(figures.makespan_seconds),
        str(figures.preemptions),
        "-" if figures.head is None else f"{figures.head.count} / {figures.head.moved} / {figures.head.late}",
        " / ".join("-" if error.median is None else f"{error.median:.0%}" for error in figures.eta_errors) or "-",
    )


def _short(seconds: float) -> str:
    """Formats seconds in one unit: "45 s", "12 min", "3.2 h", "5.0 d"."""
    for unit, length, most in (("s", 1, 100), ("min", 60, 100)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86_400:.1f} d"
