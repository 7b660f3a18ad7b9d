"""The dashboard and docs/metrics.md name the metrics that the services have, and no others."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.metric_name import find_metrics
from tests.support.source import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "gangline.json").read_text())
METRIC = re.compile(r"\bgangline_[a-z0-9_]+")
# What the issue of a slow or idle cluster is first looked for in.
EXPECTED_PANELS = {
    "gangline_scheduler_queue_length",
    "gangline_scheduler_cycle_seconds_bucket",
    "gangline_scheduler_is_leader",
    "gangline_scheduler_slots",
    "gangline_agent_runners",
    "gangline_trial_runner_step_seconds_sum",
    "gangline_trial_runner_samples_per_second",
    "gangline_trial_runner_loss",
    "gangline_gateway_http_requests_total",
    "gangline_gateway_ingest_lag_seconds_bucket",
}


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _used() -> set[str]:
    expressions = [target["expr"] for panel in _panels() for target in panel["targets"]]
    return {name for expression in expressions for name in METRIC.findall(expression)}


def test_panels_show_only_what_services_export() -> None:
    exported = {series for metric in find_metrics() for series in metric.series}
    assert sorted(_used() - exported) == []


def test_panels_show_what_operators_look_for() -> None:
    assert sorted(EXPECTED_PANELS - _used()) == []


def test_panels_are_numbered_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [cell for panel in DASHBOARD["panels"] for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_metric_is_documented_and_no_other() -> None:
    """Each row of the tables begins with the metric's name."""
    rows = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    documented = [match.group(1) for row in rows if (match := re.match(r"\| `(gangline_[a-z0-9_]+)`", row))]
    assert sorted(documented) == sorted({metric.name for metric in find_metrics()})


def _cells(position: dict[str, int]) -> list[tuple[int, int]]:
    xs = range(position["x"], position["x"] + position["w"])
    ys = range(position["y"], position["y"] + position["h"])
    return [(x, y) for x in xs for y in ys]
