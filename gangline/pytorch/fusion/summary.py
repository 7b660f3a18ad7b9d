"""PURE: what a person reads of tuning: one line, and the numbers of the metric group `fusion`."""

from __future__ import annotations

from gangline.domain.fusion import FusionRecord
from gangline.pytorch.fusion.partition import MIB


def line_of(record: FusionRecord, num_buckets: int, is_recalled: bool) -> str:
    """As in "fusion: 13 buckets of ~3 MiB, 1.24x default, 31 steps"."""
    if record.is_default:
        found = f"the default of {_buckets(record, num_buckets)} is kept"
    else:
        found = f"{_buckets(record, num_buckets)}, {record.gain_ratio:.2f}x default"
    origin = f"trial {record.trial_id}" if record.trial_id else "an earlier trial"
    return f"fusion: {found}, {f'recalled from {origin}, which took ' if is_recalled else ''}{record.steps} steps"


def metrics_of(record: FusionRecord, num_buckets: int, is_recalled: bool) -> dict[str, float]:
    return {
        "buckets": num_buckets,
        "bucket_mb": record.total_bytes / num_buckets / MIB,
        "gain_ratio": record.gain_ratio,
        "default_step_seconds": record.default_step_seconds,
        "tuned_step_seconds": record.tuned_step_seconds,
        "steps": record.steps,
        "is_recalled": float(is_recalled),
    }


def _buckets(record: FusionRecord, num_buckets: int) -> str:
    size = record.total_bytes / num_buckets / MIB
    return f"{num_buckets} bucket{'s' if num_buckets > 1 else ''} of ~{size:.2g} MiB"
