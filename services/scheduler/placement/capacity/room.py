"""PURE: the room that is left while a plan grows, indexed so that a fit is found without visiting every agent.

Agents with equally many free slots out of equally many are in one bucket, ordered on a ring of hashes. A request enters
the ring at its own hash, so request and agent break a tie. The result is the same in every process, and costs the
logarithm of the bucket's size. Slots that were taken can be given back, which is how a plan tries something out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from services.scheduler.placement.request.snapshot import AgentRoom, PoolConfig

Slots = dict[str, int]
"""Agent id -> slots taken there; 0 for an auxiliary place."""

Token = tuple[int, str]
"""An agent's place on the ring: the hash of its id, then the id."""

Domain = tuple[str, ...]
_Score = tuple[float, int]
_Ring = list[Token]


def hash_of(text: str) -> int:
    """Returns a hash that is the same in every process, unlike hash()."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


class Bin:
    """Holds what is left of one agent."""

    __slots__ = (
        "agent",
        "auxiliary",
        "auxiliary_key",
        "capacity",
        "domain",
        "free",
        "is_whole",
        "joins_gangs",
        "key",
        "token",
    )

    def __init__(self, agent: AgentRoom, network_labels: Sequence[str]) -> None:
        self.agent = agent
        self.domain = tuple(agent.labels.get(label, "") for label in network_labels)
        self.capacity = agent.slots
        self.free = agent.slots - agent.used
        self.is_whole = agent.draining == 0
        self.joins_gangs = not agent.gang_problem
        self.auxiliary = agent.max_zero_slot - agent.used_zero_slot
        self.token = (hash_of(agent.id), agent.id)
        self.key: _Score | None = None
        self.auxiliary_key: _Score | None = None

    @property
    def is_idle(self) -> bool:
        """Returns whether a gang over several agents may take it now, as a whole."""
        return self.joins_gangs and self.is_whole and 0 < self.capacity == self.free


class Room:
    """Holds the usable agents, less what was promised."""

    def __init__(self, agents: Iterable[AgentRoom], config: PoolConfig) -> None:
        self.config = config
        self._is_best = config.fitting == "best"
        self._bins = {agent.id: Bin(agent, config.network_labels) for agent in agents if agent.is_usable}
        # One ring for each score; the keys are kept sorted, so that the best score comes first.
        self._rings: dict[_Score, _Ring] = {}
        self._keys: list[_Score] = []
        self._auxiliary_rings: dict[_Score, _Ring] = {}
        self._auxiliary_keys: list[_Score] = []
        # Only agents that a gang may take whole: idle, without draining slots, and with a network for gangs.
        self._idle: dict[int, dict[Domain, _Ring]] = {}
        self.free = 0
        self._build()

    @property
    def capacity(self) -> int:
        return sum(bin_.capacity for bin_ in self._bins.values())

    @property
    def bins(self) -> Iterable[Bin]:
        return self._bins.values()

    @property
    def idle(self) -> Mapping[int, Mapping[Domain, _Ring]]:
        """Returns the agents without running work, by size and network domain. No ring is empty."""
        return self._idle

    def get(self, agent_id: str) -> Bin | None:
        return self._bins.get(agent_id)

    def widest(self) -> int:
        """Returns the most free slots of any one agent."""
        return max((bin_.free for bin_ in self._bins.values()), default=0)

    def find_shared(self, slots: int, request_hash: int, blocked: Collection[str]) -> str | None:
        """Finds the agent that takes the whole request. "best" fitting chooses the fullest and smallest agent, "worst"
        the one with the largest free fraction."""
        for key in self._keys[bisect_left(self._keys, (slots, 0)) :] if self._is_best else self._keys:
            if not self._is_best and -key[1] < slots:
                continue
            agent_id = _enter(self._rings[key], request_hash, blocked)
            if agent_id is not None:
                return agent_id
        return None

    def find_auxiliary(self, request_hash: int, blocked: Collection[str]) -> str | None:
        for key in self._auxiliary_keys:
            agent_id = _enter(self._auxiliary_rings[key], request_hash, blocked)
            if agent_id is not None:
                return agent_id
        return None

    def take(self, slots_by_agent: Mapping[str, int]) -> None:
        for agent_id, slots in slots_by_agent.items():
            self.add(agent_id, -slots, -(slots == 0))

    def give_back(self, slots_by_agent: Mapping[str, int]) -> None:
        """Adds the slots that running work would free by ending. Agents that are not usable free nothing."""
        for agent_id, slots in slots_by_agent.items():
            self.add(agent_id, slots, int(slots == 0))

    def add(self, agent_id: str, slots: int, auxiliary: int = 0) -> None:
        """Adds free slots and auxiliary places; negative numbers take them away."""
        bin_ = self._bins.get(agent_id)
        if bin_ is None:
            return
        if slots:
            self._remove_slots(bin_)
            bin_.free += slots
            self.free += slots
            self._insert_slots(bin_)
        if auxiliary:
            self._remove_auxiliary(bin_)
            bin_.auxiliary += auxiliary
            self._insert_auxiliary(bin_)

    def _build(self) -> None:
        """Builds all rings at once: sorting each ring is faster than inserting into it."""
        for bin_ in self._bins.values():
            self._insert_slots(bin_, is_building=True)
            self._insert_auxiliary(bin_, is_building=True)
            self.free += bin_.free
        idle = (ring for rings in self._idle.values() for ring in rings.values())
        for ring in (*self._rings.values(), *self._auxiliary_rings.values(), *idle):
            ring.sort()
        self._keys.sort()
        self._auxiliary_keys.sort()

    def _insert_slots(self, bin_: Bin, is_building: bool = False) -> None:
        if bin_.is_idle:
            ring = self._idle.setdefault(bin_.capacity, {}).setdefault(bin_.domain, [])
            if is_building:
                ring.append(bin_.token)
            else:
                insort(ring, bin_.token)
        bin_.key = _score(bin_.free, bin_.capacity, self._is_best)
        if bin_.key is not None:
            _insert(self._rings, self._keys, bin_.key, bin_.token, is_building)

    def _remove_slots(self, bin_: Bin) -> None:
        if bin_.is_idle:
            self._remove_idle(bin_)
        if bin_.key is not None:
            _remove(self._rings, self._keys, bin_.key, bin_.token)

    def _remove_idle(self, bin_: Bin) -> None:
        rings = self._idle[bin_.capacity]
        ring = rings[bin_.domain]
        del ring[bisect_left(ring, bin_.token)]
        if not ring:
            del rings[bin_.domain]
        if not rings:
            del self._idle[bin_.capacity]

    def _insert_auxiliary(self, bin_: Bin, is_building: bool = False) -> None:
        key = bin_.auxiliary_key = _score(bin_.auxiliary, bin_.agent.max_zero_slot, self._is_best)
        if key is not None:
            _insert(self._auxiliary_rings, self._auxiliary_keys, key, bin_.token, is_building)

    def _remove_auxiliary(self, bin_: Bin) -> None:
        if bin_.auxiliary_key is not None:
            _remove(self._auxiliary_rings, self._auxiliary_keys, bin_.auxiliary_key, bin_.token)


def _score(free: int, capacity: int, is_best: bool) -> _Score | None:
    """Returns the rank of an agent, the smallest first. None for an agent that has nothing to give."""
    if free <= 0:
        return None
    return (free, capacity) if is_best else (-free / capacity, -free)


def _insert(rings: dict[_Score, _Ring], keys: list[_Score], key: _Score, token: Token, is_building: bool) -> None:
    ring = rings.get(key)
    if ring is None:
        rings[key] = [token]
        if is_building:
            keys.append(key)
        else:
            insort(keys, key)
    elif is_building:
        ring.append(token)
    else:
        insort(ring, token)


def _remove(rings: dict[_Score, _Ring], keys: list[_Score], key: _Score, token: Token) -> None:
    ring = rings[key]
    del ring[bisect_left(ring, token)]
    if not ring:
        del rings[key]
        del keys[bisect_left(keys, key)]


def _enter(ring: _Ring, request_hash: int, blocked: Collection[str]) -> str | None:
    """Returns the first agent on the ring, at or after the request's hash, that is not blocked."""
    start = bisect_left(ring, (request_hash, ""))
    if not blocked:
        return ring[start if start < len(ring) else 0][1]
    return next((agent_id for _, agent_id in _around(ring, start) if agent_id not in blocked), None)


def _around(ring: _Ring, start: int) -> Iterator[Token]:
    yield from ring[start:]
    yield from ring[:start]
