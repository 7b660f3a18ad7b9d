"""PURE: formats values as a table, an age or a size, and as the JSON that every reading command can print instead."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from gangline.domain.document import read_document
from gangline.domain.history import MetricsPoint

# Characters of a metric that is no number, in a line of a report.
MOST_SHOWN = 80
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def format_duration(seconds: float) -> str:
    """Returns 12.3 s, 4 min, 3 h or 2 d, rounded for a human reader."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.1f} s"


def format_age(at: float, now: float) -> str:
    """Returns the time since then, as 40 s or 4 min; a dash for an event that has not happened. All lists use it."""
    if not at:
        return "-"
    seconds = max(now - at, 0.0)
    return f"{seconds:.0f} s" if seconds < 2 * _UNITS[-1][0] else format_duration(seconds)


def format_until(at: float, now: float) -> str:
    """Returns the time until then, as in 4 min; for an estimate that has passed "any moment"."""
    return f"in {format_age(now, at)}" if at > now else "any moment"


def format_bytes(count: int) -> str:
    size, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Returns text such as: accuracy 0.972, loss 0.0931."""
    return ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))


def format_report(point: MetricsPoint) -> str:
    """Returns the numbers of a report, and then its other metrics as JSON, each cut to MOST_SHOWN characters."""
    shown = [
        f"{name} {cut_text(json.dumps(value, ensure_ascii=False))}" for name, value in sorted(point.values.items())
    ]
    return ", ".join([*([format_metrics(point.metrics)] if point.metrics else []), *shown])


def cut_text(text: str, most: int = MOST_SHOWN) -> str:
    """Returns the text, or its beginning and an ellipsis where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def to_json(value: Any, indent: int | None = 1) -> str:
    """Returns ASCII JSON that is valid for every reader: NaN and infinities become null, as in the HTTP API."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False)


def jsonable(value: Any) -> Any:
    """Turns records into mappings. A field that holds a JSON document as text becomes that document."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return dict(_entry(str(name), entry) for name, entry in value.items())
    if isinstance(value, list | tuple):
        return [jsonable(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _entry(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_json") and isinstance(value, str):
        return name.removesuffix("_json"), read_document(value)
    return name, jsonable(value)


def count(number: int, noun: str) -> str:
    """Returns text such as: 1 slot, 2 slots."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
