"""PURE: changes of a waiting or running experiment's claim on slots: its position in the queue, and its resources.

Owns the positions of experiments in the queue. An experiment without a position of its own has the time of its creation
as its position. A move writes the middle between the two neighbours, so usually one record. Where floats leave no
middle, the fewest experiments ahead that suffice are moved apart as well. Changed resources (priority, weight,
max_slots) are rewritten in the experiment's configuration, so that everything that reads it sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

from gangline.config.resource import check_resource_change
from gangline.domain.experiment import Experiment, QueueMove, ResourceChange
from gangline.domain.settled.reading import with_values
from gangline.domain.state import ExitKind, State
from gangline.errors import conflict, invalid
from services.scheduler.state.records import Draft, Records, StateChange, get, live_allocation_of
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.experiment import check_going_on
from services.scheduler.transition.request import follow_experiment, priority_of
from services.scheduler.transition.stop import StopOrder, stop_allocation

# Of the 128 operations that etcd allows in one transaction; the requests of the moved experiment change beside them.
MAX_MOVED_APART = 64
# Distance of positions that have no neighbour on one side. Positions are seconds, because they begin as times of
# creation.
_STEP = 1.0


def move_experiment(
    records: Records,
    experiment_id: int,
    move: QueueMove,
    *,
    policy_by_pool: Mapping[str, str],
    rules: Rules,
    now: float,
) -> StateChange:
    """Moves the experiment, which takes the priority of the anchor. Nothing changes if it is there already.

    Raises GanglineError `experiment.not_found`, `experiment.ended`, `experiment.stopping` or `queue.*`.
    """
    experiment = get(records, Experiment, experiment_id)
    anchor = get(records, Experiment, move.anchor_experiment_id)
    _check(experiment, anchor, policy_by_pool)
    priority = _priority(anchor, rules)
    queue = sorted(_others(records, experiment, anchor, rules), key=_place)
    index = queue.index(anchor) + move.is_behind
    draft = Draft(records)
    if _priority(experiment, rules) != priority:
        experiment = with_resources(experiment, {"priority": priority})
    positions = [position_of(queued) for queued in queue]
    # An experiment that is there already keeps its position.
    if not _is_between(position_of(experiment), positions, index):
        position, apart = find_position(positions, index, now)
        experiment = replace(experiment, queue_position=position)
        for queued, moved in zip(queue[index - len(apart) : index], apart, strict=True):
            draft.put(replace(queued, queue_position=moved))
    draft.put(experiment)
    follow_experiment(draft, experiment, rules)
    return draft.change


def position_of(experiment: Experiment) -> float:
    """Returns the position among experiments of one pool and priority: the lowest goes first."""
    return experiment.created_at if experiment.queue_position is None else experiment.queue_position


def find_position(positions: Sequence[float], index: int, now: float) -> tuple[float, list[float]]:
    """Returns a position before positions[index], or after the last one, and new positions for the fewest entries just
    before it that have to move apart for that.

    positions: ascending, of the experiments that stay. now: a position after the last one is at most the present time,
    so that later submissions come after it.
    """
    end = now if now > positions[-1] else positions[-1] + _STEP
    high = positions[index] if index < len(positions) else end
    for count in range(min(index, MAX_MOVED_APART) + 1):
        low = positions[index - count - 1] if count < index else high - (count + 2) * _STEP
        step = (high - low) / (count + 2)
        spread = [low + step * number for number in range(1, count + 2)]
        if all(before < after for before, after in pairwise([low, *spread, high])):
            return spread[-1], spread[:-1]
    raise conflict("queue.too_narrow", "too many experiments stand at the same place of the queue; move another one")


def _check(experiment: Experiment, anchor: Experiment, policy_by_pool: Mapping[str, str]) -> None:
    check_going_on(experiment, "moved")
    check_going_on(anchor, "the anchor of a move")
    if experiment.id == anchor.id:
        raise invalid("queue.same", f"experiment {experiment.id} cannot be moved relative to itself; name another one")
    pool, anchor_pool = (settled_of(each.config_json).resources.pool_name for each in (experiment, anchor))
    if pool != anchor_pool:
        raise invalid(
            "queue.other_pool",
            f"experiment {experiment.id} is in pool {pool!r} and experiment {anchor.id} in pool {anchor_pool!r}; each "
            "pool has a queue of its own, so name one of the same pool",
        )
    if policy_by_pool.get(pool) == "fair_share":
        raise conflict(
            "queue.no_order",
            f"pool {pool!r} gives slots by shares (fair_share), so its queue has no order; change the weight instead",
        )


def _others(records: Records, experiment: Experiment, anchor: Experiment, rules: Rules) -> list[Experiment]:
    """Returns the experiments of the anchor's pool and priority that have not ended, the anchor among them, without the
    one that is moved."""
    pool, priority = settled_of(anchor.config_json).resources.pool_name, _priority(anchor, rules)
    return [
        candidate
        for candidate in records.all_of(Experiment)
        if candidate.state is not State.TERMINAL
        and candidate.id != experiment.id
        and settled_of(candidate.config_json).resources.pool_name == pool
        and _priority(candidate, rules) == priority
    ]


def _place(experiment: Experiment) -> tuple[float, float, int]:
    """Returns the sort key, the same as the planner's for their requests."""
    return position_of(experiment), experiment.created_at, experiment.id


def _is_between(position: float, positions: Sequence[float], index: int) -> bool:
    is_after = index == 0 or positions[index - 1] < position
    return is_after and (index == len(positions) or position < positions[index])


def _priority(experiment: Experiment, rules: Rules) -> int:
    return priority_of(settled_of(experiment.config_json), rules)


# A trial takes two operations, of the 128 that etcd allows; requests are updated beside them.
MAX_GIVEN_BACK = 24


def update_resources(
    records: Records, experiment_id: int, change: ResourceChange, *, rules: Rules, now: float
) -> StateChange:
    """Changes the resources. A change to the present values has no effect.

    Raises GanglineError `experiment.not_found`, `experiment.ended`, `experiment.stopping` or `resources.*`.
    """
    check_resource_change(change)
    experiment = get(records, Experiment, experiment_id)
    check_going_on(experiment, "changed")
    slots = settled_of(experiment.config_json).resources.slots_per_trial
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
    settled = settled_of(experiment.config_json)
    if not experiment.gives_back or settled.resources.max_slots is None:
        return
    live = (live_allocation_of(draft, trial) for trial in draft.unended_trials_of(experiment.id))
    allocations = [
        allocation
        for allocation in live
        if allocation is not None and allocation.num_slots and allocation.state is not State.STOPPING
    ]
    beyond = sum(allocation.num_slots for allocation in allocations) - settled.resources.max_slots
    order = StopOrder(
        ExitKind.PREEMPTED,
        f"max_slots of its experiment is {settled.resources.max_slots} now",
        now + settled.preemption_timeout + rules.force_seconds,
    )
    for allocation in allocations[::-1][:MAX_GIVEN_BACK]:
        if beyond <= 0:
            break
        stop_allocation(draft, allocation, order, now)
        beyond -= allocation.num_slots


def with_resources(experiment: Experiment, values: Mapping[str, float | None]) -> Experiment:
    """Returns the experiment with these values in its configuration. values: by the name of a field of `resources`."""
    config_json = with_values(experiment.config_json, {("resources", name): value for name, value in values.items()})
    return experiment if config_json is experiment.config_json else replace(experiment, config_json=config_json)


def _values(change: ResourceChange) -> dict[str, float | None]:
    """Returns the given values in the form of the configuration."""
    values = {name: value for name, value in asdict(change).items() if value is not None}
    return values | {"max_slots": change.max_slots or None} if "max_slots" in values else values
