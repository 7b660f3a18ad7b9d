"""PURE: finds the agents on which one request fits into the room that is left.

Shared fit: a gang that fits into one agent's free slots goes to one agent. Dedicated fit: otherwise it takes whole idle
agents, preferably of equal size, the largest size that divides the gang: fewer hosts, fewer links. Where the pool
allows unequal agents, exact.py finds the sizes. Among agents of the right sizes, those in the fewest network domains
are chosen, then those in the tightest domains, then those that come first on the ring.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from services.scheduler.placement.capacity.exact import find_sizes
from services.scheduler.placement.capacity.room import Domain, Room, Slots, Token, hash_of
from services.scheduler.placement.request.snapshot import PendingRequest

_Rings = Mapping[Domain, list[Token]]


def find_gang(slots: int, request_hash: int, room: Room, blocked: Collection[str]) -> Slots | None:
    """Finds agents that the gang fills completely; None when there are none."""
    rings_by_size = room.idle if not blocked else {size: _without(rings, blocked) for size, rings in room.idle.items()}
    count_by_size = {size: _count(rings) for size, rings in rings_by_size.items()}
    if sum(size * count for size, count in count_by_size.items()) < slots:
        return None
    size = equal_size(slots, count_by_size)
    if size is not None:
        agents = _in_fewest_domains(rings_by_size[size], slots // size, request_hash)
        return dict.fromkeys(agents, size)
    if not room.config.allow_heterogeneous_fits:
        return None
    return _unequal(slots, request_hash, rings_by_size)


def equal_size(slots: int, count_by_size: Mapping[int, int]) -> int | None:
    """Returns the largest agent size whose multiples, within the number of such agents, make up the gang."""
    fitting = (size for size, count in count_by_size.items() if slots % size == 0 and slots // size <= count)
    return max(fitting, default=None)


def _unequal(slots: int, request_hash: int, rings_by_size: Mapping[int, _Rings]) -> Slots | None:
    sizes = find_sizes(slots, {size: _count(rings) for size, rings in rings_by_size.items()})
    if sizes is None:
        return None
    return _within_one_domain(slots, len(sizes), request_hash, rings_by_size) or _chosen(
        sizes, request_hash, rings_by_size
    )


def _within_one_domain(
    slots: int, num_agents: int, request_hash: int, rings_by_size: Mapping[int, _Rings]
) -> Slots | None:
    """Finds as few agents as the search over all domains, but all in one of the widest domains. None if there is only
    one such domain, or if no domain can do it."""
    by_domain: dict[str, dict[int, dict[Domain, list[Token]]]] = defaultdict(lambda: defaultdict(dict))
    for size, rings in rings_by_size.items():
        for domain, ring in rings.items():
            by_domain[domain[0] if domain else ""][size][domain] = ring
    if len(by_domain) < 2:
        return None
    for name in sorted(by_domain):
        sizes = find_sizes(slots, {size: _count(rings) for size, rings in by_domain[name].items()})
        if sizes is not None and len(sizes) == num_agents:
            return _chosen(sizes, request_hash, by_domain[name])
    return None


def _chosen(sizes: Collection[int], request_hash: int, rings_by_size: Mapping[int, _Rings]) -> Slots:
    chosen: Slots = {}
    for size, count in Counter(sizes).items():
        chosen |= dict.fromkeys(_in_fewest_domains(rings_by_size[size], count, request_hash), size)
    return chosen


def _in_fewest_domains(rings: _Rings, count: int, request_hash: int, level: int = 0) -> list[str]:
    """Chooses `count` agents: whole domains, the largest first, and the rest in the tightest domain that holds it."""
    if len(rings) == 1 or level == len(next(iter(rings))):
        return _on_ring([token for ring in rings.values() for token in ring], request_hash, count)
    by_value: dict[str, dict[Domain, list[Token]]] = defaultdict(dict)
    for domain, ring in rings.items():
        by_value[domain[level]][domain] = ring
    groups = sorted(((_count(group), name) for name, group in by_value.items()))
    chosen: list[str] = []
    # Whole domains as long as none of them holds the rest by itself.
    while groups[-1][0] < count - len(chosen):
        size, name = groups.pop()
        chosen += _in_fewest_domains(by_value[name], size, request_hash, level + 1)
    num_left = count - len(chosen)
    tightest = next(name for size, name in groups if size >= num_left)
    return chosen + _in_fewest_domains(by_value[tightest], num_left, request_hash, level + 1)


def _on_ring(tokens: list[Token], request_hash: int, count: int) -> list[str]:
    """Returns the first `count` agents on the ring, starting at the request's hash."""
    tokens.sort()
    start = bisect_left(tokens, (request_hash, ""))
    return [agent_id for _, agent_id in (tokens[start : start + count] + tokens[:start])[:count]]


def _without(rings: _Rings, blocked: Collection[str]) -> dict[Domain, list[Token]]:
    left = {domain: [token for token in ring if token[1] not in blocked] for domain, ring in rings.items()}
    return {domain: ring for domain, ring in left.items() if ring}


def _count(rings: _Rings) -> int:
    return sum(len(ring) for ring in rings.values())


def find_fit(request: PendingRequest, room: Room, avoid: Collection[str] = ()) -> Slots | None:
    """Returns where the request fits now; None when it does not. avoid: agents to leave out besides its own
    blocklist."""
    blocked: Collection[str] = (
        {*request.blocklist, *avoid} if avoid and request.blocklist else avoid or request.blocklist
    )
    request_hash = hash_of(request.trial_id)
    if request.slots == 0:
        agent_id = room.find_auxiliary(request_hash, blocked)
        return None if agent_id is None else {agent_id: 0}
    agent_id = room.find_shared(request.slots, request_hash, blocked)
    if agent_id is not None:
        return {agent_id: request.slots}
    if request.is_single_agent or request.slots == 1:
        return None
    return find_gang(request.slots, request_hash, room, blocked)
