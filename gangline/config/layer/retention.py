"""PURE: changes of what an experiment keeps: their limits, and the configuration after them.

The SDK checks a change before it sends it, and the scheduler again.
"""

from __future__ import annotations

from dataclasses import asdict

from gangline.domain.experiment import RetentionChange
from gangline.domain.settled.reading import with_values
from gangline.errors import invalid

# Both are the largest values of Determined's API.
MOST_CHECKPOINTS = 2**31 - 1
MOST_DAYS = 2**15 - 1
_SECTION_BY_KEY = {
    "save_experiment_best": "checkpoint_storage",
    "save_trial_best": "checkpoint_storage",
    "save_trial_latest": "checkpoint_storage",
    "log_retention_days": "retention_policy",
    "metric_retention_days": "retention_policy",
}


def check_retention_change(change: RetentionChange) -> None:
    """Raises GanglineError `retention.nothing`, `retention.checkpoints`, `retention.days`."""
    values = _values(change)
    if not values:
        raise invalid(
            "retention.nothing", f"nothing is to be changed; give one of {', '.join(_SECTION_BY_KEY)} or several"
        )
    for key, value in values.items():
        if key.endswith("_days") and not -1 <= value <= MOST_DAYS:
            text = f"{key} {value} is out of range; give 0 to {MOST_DAYS} days, or -1 to keep them for ever"
            raise invalid("retention.days", text)
        if not key.endswith("_days") and not 0 <= value <= MOST_CHECKPOINTS:
            text = f"{key} {value} is out of range; give 0 to {MOST_CHECKPOINTS} checkpoints"
            raise invalid("retention.checkpoints", text)


def with_retention(config_json: str, change: RetentionChange) -> str:
    """Returns the configuration with the values of the change; the same text where it has them already."""
    return with_values(config_json, {(_SECTION_BY_KEY[key], key): value for key, value in _values(change).items()})


def _values(change: RetentionChange) -> dict[str, int]:
    return {key: value for key, value in asdict(change).items() if value is not None}
