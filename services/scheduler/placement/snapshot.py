"""PURE: the frozen input of one planning cycle.

Owns the records that a policy decides upon: agents with their room, groups, requests, running work, the pools'
configuration, all at one revision. It is counted in slots, not in slot ids: which slots of an agent a trial gets is
chosen when the plan is committed. Built by services.scheduler.snapshot from the leader's state, by simulation_file
from a file, and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from gangline.domain.state import ReasonCode

DEFAULT_MAX_ZERO_SLOT = 100
DEFAULT_PRIORITY = 42
UNKNOWN_RUN_SECONDS = 3600.0

Fitting = Literal["best", "worst"]
Backfill = bool | Literal["on_call"]
ON_CALL_IS_IMPOSSIBLE = (
    "'on_call' needs a pool of type priority whose preemption is on; leave it out, or say true or false"
)


@dataclass(frozen=True, slots=True)
class AgentRoom:
    """slots: how many can be given out again and again: the enabled, healthy ones, free or busy. used: how many of
    them are busy. disabled: its other slots, which are unhealthy or switched off and may come back. draining: how many
    of these are busy still; nobody gets them once their work has ended.

    is_usable: connected, alive, enabled; one that is not starts nothing and keeps counting for what its pool can hold.
    problem: why it is not usable, for reasons.
    max_zero_slot and used_zero_slot: the auxiliary places for work without slots.
    labels: where it stands: rack, zone or any key.
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

    @property
    def free(self) -> int:
        return self.slots - self.used


@dataclass(frozen=True, slots=True)
class Group:
    """What shares a cap and a weight: one experiment. max_slots: None for no cap. weight: its share relative to the
    others'; with 0 it gets what nobody else wants."""

    id: str
    max_slots: int | None = None
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY


class Groups(tuple[Group, ...]):
    """Groups of a snapshot; by_id: the same, at hand."""

    by_id: Mapping[str, Group]


Shape = tuple[int, bool, tuple[str, ...], tuple[tuple[str, str], ...]]
Elastic = tuple[tuple[int, ...], float, int]
Kind = tuple[Shape, bool, bool, ReasonCode | None, Elastic | None]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A trial that waits for slots, all of them or none.

    queue_position: before the time of submission among requests of one priority; None comes after every position.
    estimated_seconds: how long it will run; 0 when unknown. is_bounded: it is certain to be over by then, because that
    is enforced or known exactly; else the estimate is a guess, by which starts are forecast and nothing is given away.
    hold: PAUSED or SEARCH_WAITING keep it from starting.
    is_first: it goes before every other request of its pool, whatever the policy. excluded: agents of the blocklist
    that stand there for a while only, each with a sentence that says how long and why.
    smaller_sizes: on which it may start instead from shrink_at on, the largest first; empty for none. kept_slots: one
    of them that it may take at any time; 0 for none.

    shape: requests of one shape fit, or do not fit, into the same room. kind: what else an answer may depend on, beside
    its group, its length and the time. Both are kept because every cycle asks every request for them.
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
        """The shape of a request of this size that avoids no agent."""
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
    """A live allocation. slots_by_agent holds 0 for an auxiliary place. estimated_end_at: 0 when unknown. is_bounded:
    it is certain to have ended by then, see PendingRequest.

    draining_by_agent: how many of its slots nobody gets after it. is_stopping: told to end; its slots are promised to
    the most urgent request that they suffice for. checkpoint_age_seconds: since its last checkpoint; None when it has
    none, so that its whole run would be lost. queue_position, submitted_at: the place in the queue that it came from
    and goes back to when it is stopped. is_on_call: it has passed somebody who waited, on the condition that whoever
    comes before it in the queue may have it stopped, also at the same priority.

    wanted: the request for its full size, of work that runs on fewer slots; None for all other work. grow_at: from when
    on it may be stopped to start again in full. is_growing: it is being stopped for that.
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
    """policy: a key of placement.policy.POLICIES. backfill: who may start before a request that comes first and has to
    wait: nobody (False), who does not delay it (True), or also whoever can be stopped for it ("on_call").
    network_labels: keys of agents' labels, the widest first; a gang over several agents keeps to as few values of them
    as it can."""

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
    """On where the policy has an order by which running work can be stopped. Without it a large gang waits until
    enough running work happens to end at one time."""
    return policy != "round_robin"


def default_backfill(policy: str, is_preemption_on: bool) -> Backfill:
    """On call where that is possible: somebody can be stopped at all, and the queue has one order, so that it is known
    who came before whom."""
    return "on_call" if policy == "priority" and is_preemption_on else True


def default_pool(name: str) -> PoolConfig:
    """A pool that no setting describes."""
    policy = "priority"
    is_preemption_on = default_preemption(policy)
    backfill = default_backfill(policy, is_preemption_on)
    return PoolConfig(name, policy, is_preemption_on=is_preemption_on, backfill=backfill)


@dataclass(frozen=True)
class Snapshot:
    """requests: in any order; Sorted ones spare the planner its sorting. revision: of the state that this was taken
    from. typical_run_seconds: by pool, the median of what has ended there; it stands in where nothing is known of a
    request, but in the ETA alone."""

    pools: tuple[PoolConfig, ...]
    agents: tuple[AgentRoom, ...]
    requests: tuple[PendingRequest, ...] = ()
    running: tuple[Running, ...] = ()
    groups: tuple[Group, ...] = ()
    revision: int = 0
    typical_run_seconds: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def group_by_id(self) -> Mapping[str, Group]:
        return self.groups.by_id if isinstance(self.groups, Groups) else {group.id: group for group in self.groups}

    @cached_property
    def pool_names(self) -> frozenset[str]:
        return frozenset(pool.name for pool in self.pools)

    def agents_of(self, pool: str) -> tuple[AgentRoom, ...]:
        return tuple(agent for agent in self.agents if agent.pool == pool)


@dataclass(frozen=True)
class PoolView:
    """One pool's part of a snapshot: what a policy gets to see. requests: in the pool's order, see order.py.
    typical_run_seconds: 0 when unknown."""

    config: PoolConfig
    agents: tuple[AgentRoom, ...]
    requests: Sequence[PendingRequest]
    running: tuple[Running, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    typical_run_seconds: float = 0.0

    def cap_of(self, group: str) -> int | None:
        found = self.groups.get(group)
        return found.max_slots if found else None

    def weight_of(self, group: str) -> float:
        found = self.groups.get(group)
        return found.weight if found else 1.0
