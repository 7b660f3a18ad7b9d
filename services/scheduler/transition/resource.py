"""PURE: what changes of an experiment's resources while it lives: priority, weight, max_slots.

They are rewritten in its configuration, so that everything that goes by it follows: the planner in its next cycle, and
the requests that wait. Nothing is stopped by it: a lower max_slots only keeps more from starting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from gangline.config.change import check_resource_change
from gangline.domain.experiment import Experiment, ResourceChange
from gangline.errors import invalid
from services.scheduler.facts import facts_of
from services.scheduler.records import Change, Draft, Records, get
from services.scheduler.transition.experiment import check_going_on
from services.scheduler.transition.request import follow_experiment
from services.scheduler.transition.rules import Rules


def change_resources(records: Records, experiment_id: int, change: ResourceChange, rules: Rules) -> Change:
    """What is so already changes nothing.

    Raises GanglineError `experiment.not_found`, `experiment.ended`, `experiment.stopping` or `resources.*`."""
    check_resource_change(change)
    experiment = get(records, Experiment, experiment_id)
    check_going_on(experiment, "changed")
    slots = facts_of(experiment.config_json).slots
    if change.max_slots and change.max_slots < slots:
        raise invalid(
            "resources.max_slots",
            f"max_slots {change.max_slots} is below the {slots} slots of one trial of experiment {experiment_id}, so "
            f"none could start any more; give at least {slots}, or 0 for no cap",
        )
    draft = Draft(records)
    experiment = with_resources(experiment, _values(change))
    draft.put(experiment)
    follow_experiment(draft, experiment, rules)
    return draft.change


def with_resources(experiment: Experiment, values: Mapping[str, float | None]) -> Experiment:
    """values: by the name of a field of `resources`."""
    document = json.loads(experiment.config_json)
    resources = document.setdefault("resources", {})
    if all(name in resources and resources[name] == value for name, value in values.items()):
        return experiment
    resources.update(values)
    return replace(experiment, config_json=json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _values(change: ResourceChange) -> dict[str, float | None]:
    """What is said, as the configuration says it."""
    said = {name: value for name, value in asdict(change).items() if value is not None}
    return said | {"max_slots": change.max_slots or None} if "max_slots" in said else said
