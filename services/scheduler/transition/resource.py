"""PURE: changes of an experiment's resources while it lives: priority, weight, max_slots.

They are rewritten in its configuration, so that everything that reads it follows: the planner in its next cycle, and
the waiting requests. A lower max_slots keeps more trials from starting. Unless the user says otherwise, it also stops
the newest trials until the experiment is within the cap: some at once, the others by `pursue`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from gangline.config.change import check_resource_change
from gangline.domain.experiment import Experiment, ResourceChange
from gangline.domain.state import ExitKind, State
from gangline.errors import invalid
from services.scheduler.facts import facts_of
from services.scheduler.records import Change, Draft, Records, get, live_allocation_of
from services.scheduler.transition.experiment import check_going_on
from services.scheduler.transition.request import follow_experiment
from services.scheduler.transition.rules import Rules
from services.scheduler.transition.stop import StopOrder, stop_allocation

# A trial takes two operations, of the 128 that etcd allows; requests are updated beside them.
MAX_GIVEN_BACK = 24


def change_resources(
    records: Records, experiment_id: int, change: ResourceChange, *, rules: Rules, now: float
) -> Change:
    """Changes the resources. A change to the present values has no effect.

    Raises GanglineError `experiment.not_found`, `experiment.ended`, `experiment.stopping` or `resources.*`.
    """
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
    if change.max_slots is not None:
        experiment = replace(experiment, gives_back=change.max_slots > 0 and not change.when_free)
    draft.put(experiment)
    follow_experiment(draft, experiment, rules)
    give_back(draft, experiment, rules, now)
    return draft.change


def give_back(draft: Draft, experiment: Experiment, rules: Rules, now: float) -> None:
    """Stops the next of the newest trials beyond max_slots, if the experiment has to give slots back. Trials that are
    stopping already count as gone."""
    facts = facts_of(experiment.config_json)
    if not experiment.gives_back or facts.max_slots is None:
        return
    live = (live_allocation_of(draft, trial) for trial in draft.trials_of(experiment.id))
    held = [one for one in live if one is not None and one.num_slots and one.state is not State.STOPPING]
    beyond = sum(one.num_slots for one in held) - facts.max_slots
    order = StopOrder(
        ExitKind.PREEMPTED,
        f"max_slots of its experiment is {facts.max_slots} now",
        now + facts.preemption_timeout_seconds + rules.force_seconds,
    )
    for allocation in held[::-1][:MAX_GIVEN_BACK]:
        if beyond <= 0:
            break
        stop_allocation(draft, allocation, order, now)
        beyond -= allocation.num_slots


def with_resources(experiment: Experiment, values: Mapping[str, float | None]) -> Experiment:
    """Returns the experiment with these values in its configuration. values: by the name of a field of `resources`."""
    document = json.loads(experiment.config_json)
    resources = document.setdefault("resources", {})
    if all(name in resources and resources[name] == value for name, value in values.items()):
        return experiment
    resources.update(values)
    return replace(experiment, config_json=json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _values(change: ResourceChange) -> dict[str, float | None]:
    """Returns the given values in the form of the configuration."""
    said = {name: value for name, value in asdict(change).items() if value is not None}
    return said | {"max_slots": change.max_slots or None} if "max_slots" in said else said
