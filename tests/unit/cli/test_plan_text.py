"""The stages of a plan as text: a column for what parts carry on, where there is some."""

from __future__ import annotations

from typing import Any

from gangline.cli.plan import _pipeline_lines

_MIB = 1024**2


def _stages(*carried: float) -> dict[str, Any]:
    slot = {"bytes": {"total": 3 * _MIB}, "step_seconds": 0.5}
    return {
        "stages": 2,
        "replicas": 1,
        "has_divided_replicas": False,
        "schedule": "1F1B",
        "microbatches": 8,
        "bubble": 1 / 9,
        "largest_to_mean": 1.0,
        "parts": [{"modules": ["a", "b"], "parameters": 10, "carried_bytes": count} for count in carried],
        "slots": [slot, slot],
    }


def test_a_chain_has_no_column_for_what_is_carried() -> None:
    heading, titles, *rows = _pipeline_lines(_stages(0, 0))
    assert heading.startswith("pipeline: 2 stages, 1 replica, 1F1B, 8 microbatches; bubble 11.1%")
    assert titles.split() == ["PART", "MODULES", "PARAMETERS"]
    assert rows[0].split() == ["0", "a", "to", "b", "10"]


def test_skip_connections_have_one() -> None:
    _, titles, first, second, *_ = _pipeline_lines(_stages(1.5 * _MIB, 0))
    assert titles.endswith("CARRIED ON, MIB A RECORD")
    assert first.split()[-1] == "1.50"
    assert second.split()[-1] == "0.00"
