"""PURE: the frozen input of one planning cycle.

Owns the records that a policy decides upon: agents with their room, groups, requests, running work and the pools'
configuration, all at one revision. Counts slots and knows no slot ids: the slots of an agent that a trial gets are
chosen when the plan is committed. Snapshots are built by services.scheduler.leader.planner_snapshot from the leader's
state, by simulation_file from a file, and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from gangline.domain.state import ReasonCode

# Auxiliary places of an agent whose configuration names no number.
DEFAULT_MAX_ZERO_SLOT = 100
# Priorities go from 1 (most urgent) to 99.
DEFAULT_PRIORITY = 42
# Assumed length of a run when neither an estimate nor the pool's median is known: one hour.
UNKNOWN_RUN_SECONDS = 3600.0

Fitting = Literal["best", "worst"]
Backfill = bool | Literal["on_call"]
ON_CALL_IS_IMPOSSIBLE = (
    "'on_call' needs a pool of type priority whose preemption is on; leave it out, or say true or false"
)


@dataclass(frozen=True, slots=True)
class AgentRoom:
    """Holds the slots of one agent and what occupies them.

    slots: enabled, healthy slots, free or busy. used: the busy ones among them.
    disabled: the other slots, unhealthy or switched off; they may come back. draining: disabled slots that are still
    busy; no request gets them once their work has ended.
    is_usable: connected, alive and enabled. An agent that is not usable starts nothing, but still counts for what its
    pool can ever hold. problem: why it is not usable, for reasons.
    max_zero_slot and used_zero_slot: the auxiliary places for work without slots.
    switched_off: "draining" or "disabled" if an administrator's setting alone keeps the agent from starting work.
    switched_off_slots: those of the disabled slots that only an administrator's setting closes.
    labels: its location: rack, zone or any other key.
    gang_problem: why it takes no part in gangs over several agents, such as a network interface that is down; empty if
    it does. All other work may start there.
    """

    id: str
    pool: str
    slots: int
    used: int = 0
    is_usable: bool = True
    problem: str = ""
    max_zero_slot: int = DEFAULT_MAX_ZERO_SLOT
    used_zero_slot: int = 0
    draining: int = 0
    disabled: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    switched_off: str = ""
    switched_off_slots: int = 0
    gang_problem: str = ""

    @property
    def free(self) -> int:
        return self.slots - self.used


@dataclass(frozen=True, slots=True)
class Group:
    """Describes an experiment, the unit that shares a cap and a weight. max_slots: None for no cap. weight: its share
    relative to the other groups; with weight 0 it gets only slots that no other group wants."""

    id: str
    max_slots: int | None = None
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY


# Slots, single agent, blocklist, excluded agents.
Shape = tuple[int, bool, tuple[str, ...], tuple[tuple[str, str], ...]]
# Smaller sizes, shrink_at, kept slots.
Elastic = tuple[tuple[int, ...], float, int]
# Shape, preemptible, certain to end by its estimate, hold, elastic sizes.
Kind = tuple[Shape, bool, bool, ReasonCode | None, Elastic | None]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Describes a trial that waits for slots, all of them or none.

    queue_position: compared before the time of submission among requests of one priority; None sorts after every
    position.
    estimated_seconds: expected length of the run; 0 when unknown. is_bounded: the run is certain to be over by then,
    because that is enforced or known exactly. Otherwise the estimate is a guess: it serves to forecast starts, but no
    slots are given away because of it.
    hold: PAUSED or SEARCH_WAITING keep it from starting.
    is_first: it goes before every other request of its pool, whatever the policy.
    excluded: agents of the blocklist that are on it for a limited time, each with a sentence that says how long and
    why.
    smaller_sizes: sizes on which it may start instead from shrink_at on, the largest first; empty for none. kept_slots:
    one of these sizes that it may take at any time; 0 for none.

    shape: requests of one shape fit, or do not fit, into the same room. kind: everything an answer may depend on
    besides the group, the length and the time. Both are computed once, because every cycle reads them for every
    request.
    """

    trial_id: str
    group: str
    pool: str
    slots: int
    priority: int = DEFAULT_PRIORITY
    queue_position: float | None = None
    is_single_agent: bool = False
    is_preemptible: bool = True
    blocklist: tuple[str, ...] = ()
    submitted_at: float = 0.0
    not_before_at: float = 0.0
    estimated_seconds: float = 0.0
    hold: ReasonCode | None = None
    is_first: bool = False
    excluded: tuple[tuple[str, str], ...] = ()
    is_bounded: bool = False
    smaller_sizes: tuple[int, ...] = ()
    shrink_at: float = 0.0
    kept_slots: int = 0
    shape: Shape = field(init=False, repr=False, compare=False)
    kind: Kind = field(init=False, repr=False, compare=False)

    @property
    def blocked_for_good(self) -> frozenset[str]:
        return frozenset(self.blocklist).difference(agent_id for agent_id, _ in self.excluded)

    @property
    def bare_shape(self) -> Shape:
        """Returns the shape of a request of this size that avoids no agent."""
        return (self.slots, self.is_single_agent, (), ())

    def without_blocklist(self) -> PendingRequest:
        return replace(self, blocklist=(), excluded=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", (self.slots, self.is_single_agent, self.blocklist, self.excluded))
        object.__setattr__(
            self,
            "kind",
            (
                self.shape,
                self.is_preemptible,
                self.is_bounded and self.estimated_seconds > 0,
                self.hold,
                (self.smaller_sizes, self.shrink_at, self.kept_slots) if self.smaller_sizes else None,
            ),
        )


@dataclass(frozen=True, slots=True)
class Running:
    """Describes a live allocation.

    slots_by_agent: holds 0 for an auxiliary place.
    estimated_end_at: 0 when unknown. is_bounded: it is certain to have ended by then, see PendingRequest.
    draining_by_agent: slots of it that no request gets afterwards.
    is_stopping: it was asked to stop; its slots are promised to the most urgent request that they suffice for.
    checkpoint_age_seconds: time since its last checkpoint; None when it has none, so that its whole run would be lost.
    queue_position, submitted_at: its place in the queue, to which it returns when it is stopped.
    is_on_call: it started before a request that waited, on the condition that requests before it in the queue may
    preempt it, also at the same priority.

    wanted: the request for the full size, for work that runs on fewer slots; None for all other work. grow_at: from
    this time on it may be stopped to start again in full. is_growing: it is being stopped for that.
    """

    allocation_id: str
    trial_id: str
    group: str
    pool: str
    slots_by_agent: Mapping[str, int]
    priority: int = DEFAULT_PRIORITY
    is_preemptible: bool = True
    started_at: float = 0.0
    estimated_end_at: float = 0.0
    draining_by_agent: Mapping[str, int] = field(default_factory=dict)
    is_stopping: bool = False
    checkpoint_age_seconds: float | None = None
    queue_position: float | None = None
    submitted_at: float = 0.0
    is_on_call: bool = False
    is_bounded: bool = False
    wanted: PendingRequest | None = None
    grow_at: float = 0.0
    is_growing: bool = False

    @property
    def slots(self) -> int:
        return sum(self.slots_by_agent.values())


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Configures one resource pool.

    policy: a key of placement.policy.POLICIES.
    backfill: which requests may start before the first one that has to wait: none (False), those that do not delay it
    (True), or also those that can be preempted for it ("on_call").
    network_labels: keys of agents' labels, the widest first; a gang over several agents spans as few values of them as
    it can.
    """

    name: str
    policy: str = "priority"
    fitting: Fitting = "best"
    allow_heterogeneous_fits: bool = False
    is_preemption_on: bool = False
    default_priority: int = DEFAULT_PRIORITY
    backfill: Backfill = True
    network_labels: tuple[str, ...] = ("zone", "rack")

    @property
    def is_on_call_possible(self) -> bool:
        return self.backfill == "on_call" == default_backfill(self.policy, self.is_preemption_on)


def default_preemption(policy: str) -> bool:
    """Returns whether preemption is on by default: it is where the policy has an order in which running work can be
    stopped. Without preemption a large gang waits until enough running work happens to end at one time."""
    return policy != "round_robin"


def default_backfill(policy: str, is_preemption_on: bool) -> Backfill:
    """Returns "on_call" where that is possible, else True. On call needs preemption, and one order of the queue that
    decides which request comes before which."""
    return "on_call" if policy == "priority" and is_preemption_on else True


def default_pool(name: str) -> PoolConfig:
    """Returns the configuration of a pool that no setting describes."""
    policy = "priority"
    is_preemption_on = default_preemption(policy)
    backfill = default_backfill(policy, is_preemption_on)
    return PoolConfig(name, policy, is_preemption_on=is_preemption_on, backfill=backfill)


@dataclass(frozen=True)
class Snapshot:
    """Holds the input of one planning cycle. requests: in any order; a ClusterQueue (queue.py) spares the planner
    its sorting. groups: by id. revision: of the state that the snapshot was taken from. typical_run_seconds: by pool,
    the median of the runs that have ended there; it replaces an unknown estimate, but only in the ETA."""

    pools: tuple[PoolConfig, ...]
    agents: tuple[AgentRoom, ...]
    requests: Sequence[PendingRequest] = ()
    running: tuple[Running, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    revision: int = 0
    typical_run_seconds: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def pool_names(self) -> frozenset[str]:
        return frozenset(pool.name for pool in self.pools)

    def agents_of(self, pool: str) -> tuple[AgentRoom, ...]:
        return tuple(agent for agent in self.agents if agent.pool == pool)


@dataclass(frozen=True)
class PoolView:
    """Holds one pool's part of a snapshot, the input of a policy. requests: in the pool's order, see order.py.
    typical_run_seconds: 0 when unknown."""

    config: PoolConfig
    agents: tuple[AgentRoom, ...]
    requests: Sequence[PendingRequest]
    running: tuple[Running, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    typical_run_seconds: float = 0.0

    def cap_of(self, group: str) -> int | None:
        group_record = self.groups.get(group)
        return group_record.max_slots if group_record else None

    def weight_of(self, group: str) -> float:
        group_record = self.groups.get(group)
        return group_record.weight if group_record else 1.0
