"""Finds the Prometheus metrics that the services define, by reading their source.

Importing them would load every service into one process. Called by the tests of the dashboard and of docs/metrics.md.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tests.support.source import list_source_files

SUFFIXES_BY_KIND = {
    "Counter": ("",),
    "Gauge": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
    "Summary": ("_sum", "_count"),
    "Info": ("_info",),
    "CounterMetricFamily": ("",),
    "GaugeMetricFamily": ("",),
}


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """name: as the service gives it, with `_total` for counters."""

    name: str
    kind: str
    path: str

    @property
    def series(self) -> set[str]:
        """The names under which Prometheus stores it."""
        return {self.name + suffix for suffix in SUFFIXES_BY_KIND[self.kind]}


def find_metrics() -> list[MetricDefinition]:
    """Returns the metrics of all services, by name."""
    definitions = [
        MetricDefinition(_full_name(call), _callee(call), file.path)
        for file in list_source_files()
        if file.path.startswith(("services/", "gangline/")) and any(kind in file.text for kind in SUFFIXES_BY_KIND)
        for call in ast.walk(file.tree)
        if isinstance(call, ast.Call) and _callee(call) in SUFFIXES_BY_KIND and _first_text(call).startswith("gangline")
    ]
    return sorted(definitions, key=lambda metric: metric.name)


def _full_name(call: ast.Call) -> str:
    name = _first_text(call)
    return f"{name}_total" if _callee(call).startswith("Counter") and not name.endswith("_total") else name


def _callee(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _first_text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
