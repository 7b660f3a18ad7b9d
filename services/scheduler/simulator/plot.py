"""Draws the queue and the use of the cluster over time, one row of charts for each strategy, into a PNG file.

matplotlib comes with the extra `plot` and is loaded only here. Called by the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from gangline.errors import invalid, unavailable
from services.scheduler.simulator.played import Played

_HOUR_SECONDS = 3600.0


def check_plot(path: str) -> None:
    """Checks, before a trace is played, that a chart can be drawn at all."""
    if not path.endswith(".png"):
        raise invalid("simulation.argument", f"--plot {path}: the name must end with .png")
    if find_spec("matplotlib") is None:
        advice = "type: pip install 'gangline[plot]' (docs/install.md says from where)"
        raise unavailable("simulation.plot", f"--plot needs matplotlib; {advice}")


def draw_plot(played_by_name: Mapping[str, Played], path: str) -> None:
    """Draws the charts. The time axis is shared and counts hours from the first submission. An existing file is
    overwritten."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    figure = Figure(figsize=(12, 1.2 + 1.7 * len(played_by_name)), layout="constrained")
    FigureCanvasAgg(figure)
    charts = figure.subplots(len(played_by_name), 2, sharex=True, sharey="col", squeeze=False)
    start = min(played.moments[0].at for played in played_by_name.values())
    for (queue, use), (name, played) in zip(charts, played_by_name.items(), strict=True):
        hours = [(moment.at - start) / _HOUR_SECONDS for moment in played.moments]
        queue.step(hours, [moment.num_waiting for moment in played.moments], where="post", linewidth=0.8)
        busy = [100 * moment.slots_busy / played.num_slots for moment in played.moments]
        use.fill_between(hours, busy, step="post", linewidth=0, alpha=0.7)
        queue.set_ylabel("requests")
        use.set_ylabel("% of slots")
        queue.set_title(f"{name}: waiting", fontsize=9, loc="left")
        use.set_title(f"{name}: busy", fontsize=9, loc="left")
    charts[0, 0].set_ylim(bottom=0)
    charts[0, 1].set_ylim(0, 100)
    for chart in charts[-1]:
        chart.set_xlabel("hours since the first submission")
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise invalid("simulation.file", f"{path}: cannot be written: {error.strerror}") from error
