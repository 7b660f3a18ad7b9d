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
    """Holds the slots of one agent and what occupies them."""

    id: str
    pool: str
    slots: int  # enabled, healthy slots, free or busy
    used: int = 0  # the busy ones among `slots`
    # Whether it is connected, alive and enabled. Otherwise it starts nothing, but still counts for what its pool can
    # ever hold.
    is_usable: bool = True
    problem: str = ""  # why it is not usable, for reasons; empty if it is
    max_zero_slot: int = DEFAULT_MAX_ZERO_SLOT  # auxiliary places for work without slots
    used_zero_slot: int = 0  # the busy ones among the auxiliary places
    draining: int = 0  # disabled slots that are still busy; no request gets them once their work has ended
    disabled: int = 0  # the other slots, unhealthy or switched off; they may come back
    labels: Mapping[str, str] = field(default_factory=dict)  # its location by rack, zone or any other key
    # "draining" or "disabled" if an administrator's setting alone keeps the agent from starting work
    switched_off: str = ""
    switched_off_slots: int = 0  # the disabled slots that only an administrator's setting closes
    # Why it takes no part in gangs over several agents, such as a network interface that is down; empty if it does. All
    # other work may start there.
    gang_problem: str = ""

    @property
    def free(self) -> int:
        return self.slots - self.used


@dataclass(frozen=True, slots=True)
class Group:
    """Describes an experiment, the unit that shares a cap and a weight."""

    id: str
    max_slots: int | None = None  # None for no cap
    # share relative to the other groups; with weight 0 it gets only slots that no other group wants
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Limit:
    """Describes the quota of a user or a workspace, over all pools. id: by which requests and running work name it."""

    id: str
    name: str  # for reasons, such as "user ada"
    max_slots: int | None = None  # slots at a time; None for no limit
    slot_hours: float | None = None  # of a month; None for no limit
    used_hours: float = 0.0  # in this month until now
    renews_at: float = 0.0  # when the next month begins; 0 without slot_hours
    # slots that are held or promised beside the work that the planner sees, such as in other pools
    held_elsewhere: int = 0

    @property
    def is_spent(self) -> bool:
        """Returns whether the month's slot-hours are used up, so that nothing starts."""
        return self.slot_hours is not None and self.used_hours >= self.slot_hours

    def allows(self, held: int, slots: int) -> bool:
        """Returns whether so many more slots may start. held: the slots that are held already."""
        return not self.is_spent and (self.max_slots is None or held + slots <= self.max_slots)


# Slots, single agent, blocklist, excluded agents.
Shape = tuple[int, bool, tuple[str, ...], tuple[tuple[str, str], ...]]
# Smaller sizes, shrink_at, kept slots.
Elastic = tuple[tuple[int, ...], float, int]
# Shape, preemptible, certain to end by its estimate, hold, elastic sizes, limits.
Kind = tuple[Shape, bool, bool, ReasonCode | None, Elastic | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Describes a trial that waits for slots, all of them or none.

    `shape` and `kind` are computed once, because every cycle reads them for every request.
    """

    trial_id: str
    group: str
    pool: str
    slots: int
    priority: int = DEFAULT_PRIORITY
    # compared before the time of submission within one priority; None sorts after every position
    queue_position: float | None = None
    is_single_agent: bool = False
    is_preemptible: bool = True
    blocklist: tuple[str, ...] = ()
    submitted_at: float = 0.0
    not_before_at: float = 0.0
    estimated_seconds: float = 0.0  # expected length of the run; 0 if unknown
    hold: ReasonCode | None = None  # PAUSED or SEARCH_WAITING keep it from starting; None if nothing does
    is_first: bool = False  # whether it goes before every other request of its pool, whatever the policy
    # agents of the blocklist that are on it for a limited time, each with a sentence that says how long and why
    excluded: tuple[tuple[str, str], ...] = ()
    # Whether the run is certain to be over by estimated_seconds, because that is enforced or known exactly. Otherwise
    # the estimate is a guess: it serves to forecast starts, but no slots are given away because of it.
    is_bounded: bool = False
    # sizes on which it may start instead from shrink_at on, the largest first; empty for none
    smaller_sizes: tuple[int, ...] = ()
    shrink_at: float = 0.0
    kept_slots: int = 0  # one of smaller_sizes, which it may take at any time; 0 for none
    limits: tuple[str, ...] = ()  # ids of the limits for which its slots count
    # requests of one shape fit, or do not fit, into the same room
    shape: Shape = field(init=False, repr=False, compare=False)
    # everything an answer may depend on besides the group, the length and the time
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
                self.limits,
            ),
        )


@dataclass(frozen=True, slots=True)
class Running:
    """Describes a live allocation."""

    allocation_id: str
    trial_id: str
    group: str
    pool: str
    slots_by_agent: Mapping[str, int]  # holds 0 for an auxiliary place
    priority: int = DEFAULT_PRIORITY
    is_preemptible: bool = True
    started_at: float = 0.0
    estimated_end_at: float = 0.0  # 0 if unknown
    draining_by_agent: Mapping[str, int] = field(default_factory=dict)  # its slots that no request gets afterwards
    # it was asked to stop; its slots are promised to the most urgent request for which they suffice
    is_stopping: bool = False
    # time since its last checkpoint; None if it has none, so that its whole run would be lost
    checkpoint_age_seconds: float | None = None
    # its place in the queue, to which it returns when it is stopped; as in PendingRequest
    queue_position: float | None = None
    submitted_at: float = 0.0  # the other part of its place in the queue
    # It started before a request that waited, on the condition that requests before it in the queue may preempt it,
    # also at the same priority.
    is_on_call: bool = False
    is_bounded: bool = False  # whether it is certain to have ended by estimated_end_at, see PendingRequest
    # request for the full size, for work that runs on fewer slots; None for all other work
    wanted: PendingRequest | None = None
    grow_at: float = 0.0  # time from which on it may be stopped to start again in full
    is_growing: bool = False  # whether it is being stopped to start again in full
    limits: tuple[str, ...] = ()  # ids of the limits for which its slots count

    @property
    def slots(self) -> int:
        return sum(self.slots_by_agent.values())


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Configures one resource pool."""

    name: str
    policy: str = "priority"  # a key of placement.policy.POLICIES
    fitting: Fitting = "best"
    allow_heterogeneous_fits: bool = False
    is_preemption_on: bool = False
    default_priority: int = DEFAULT_PRIORITY
    # Which requests may start before the first one that has to wait: none (False), those that do not delay it (True),
    # or also those that can be preempted for it ("on_call").
    backfill: Backfill = True
    # keys of agents' labels, the widest first; a gang over several agents spans as few values of them as it can
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
    """Holds the input of one planning cycle."""

    pools: tuple[PoolConfig, ...]
    agents: tuple[AgentRoom, ...]
    requests: Sequence[PendingRequest] = ()  # in any order; a ClusterQueue (queue.py) spares the planner its sorting
    running: tuple[Running, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)  # by id
    revision: int = 0  # revision of the state from which the snapshot was taken
    # By pool, the median of the runs that have ended there. It replaces an unknown estimate, but only in the ETA.
    typical_run_seconds: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)  # by id, those that requests or running work name

    @cached_property
    def pool_names(self) -> frozenset[str]:
        return frozenset(pool.name for pool in self.pools)

    def agents_of(self, pool: str) -> tuple[AgentRoom, ...]:
        return tuple(agent for agent in self.agents if agent.pool == pool)


@dataclass(frozen=True)
class PoolView:
    """Holds one pool's part of a snapshot, the input of a policy."""

    config: PoolConfig
    agents: tuple[AgentRoom, ...]
    requests: Sequence[PendingRequest]  # in the pool's order, see order.py
    running: tuple[Running, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    typical_run_seconds: float = 0.0  # 0 if unknown
    limits: Mapping[str, Limit] = field(default_factory=dict)  # by id
    # by limit, the slots that count for it: held in all pools and elsewhere, or promised by the plans of other pools
    held: Mapping[str, int] = field(default_factory=dict)
    # by limit, the running work that counts for it, of all pools
    holders: Mapping[str, Sequence[Running]] = field(default_factory=dict)

    def cap_of(self, group: str) -> int | None:
        group_record = self.groups.get(group)
        return group_record.max_slots if group_record else None

    def weight_of(self, group: str) -> float:
        group_record = self.groups.get(group)
        return group_record.weight if group_record else 1.0
