"""PURE: which sizes of gangs a set of agents can ever hold, if all of them are idle.

Used at submit, where a size that can never fit is refused with the sizes that do, and by the reasons of pending
requests. It must agree with `fit`: a size listed here is placed on these agents when they are idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from services.scheduler.placement.capacity.exact import find_sizes, sums_of
from services.scheduler.placement.capacity.fit import equal_size

# With more ranges of sizes than this, a sentence names only the nearest sizes.
_MAX_NAMED = 12


def fitting_sizes(
    slots_of_agents: Iterable[int], is_single_agent: bool = False, is_heterogeneous: bool = False
) -> list[int]:
    """Returns all sizes, ascending: up to the largest agent by shared fit, multiples of equal agents by dedicated fit,
    and sums of unequal ones where these may be mixed."""
    counts = Counter(slots for slots in slots_of_agents if slots > 0)
    sizes = set(range(1, max(counts, default=0) + 1))
    if not is_single_agent:
        if is_heterogeneous:
            return sorted(sizes | set(sums_of(counts, sum(counts.elements()))))
        for slots, count in counts.items():
            sizes.update(slots * agents for agents in range(2, count + 1))
    return sorted(sizes)


def can_hold(
    slots: int, slots_of_agents: Sequence[int], is_single_agent: bool = False, is_heterogeneous: bool = False
) -> bool:
    """Returns whether a gang of this size fits when all these agents are idle. A gang of no slots fits any agent."""
    return can_counted_hold(slots, Counter(slots_of_agents), is_single_agent, is_heterogeneous)


def can_counted_hold(
    slots: int,
    num_by_size: Mapping[int, int],
    is_single_agent: bool = False,
    is_heterogeneous: bool = False,
    num_in_gangs_by_size: Mapping[int, int] | None = None,
) -> bool:
    """Answers like `can_hold`. num_by_size: how many agents have each number of slots; no count is 0.
    num_in_gangs_by_size: those that may be part of a gang over several agents; None for all."""
    if slots == 0:
        return bool(num_by_size)
    if slots <= max(num_by_size, default=0):
        return True
    if is_single_agent:
        return False
    in_gangs = num_by_size if num_in_gangs_by_size is None else num_in_gangs_by_size
    counts = {size: num for size, num in in_gangs.items() if size > 0}
    if equal_size(slots, counts) is not None:
        return True
    return is_heterogeneous and find_sizes(slots, counts) is not None


def describe_agents(slots_of_agents: Iterable[int]) -> str:
    """Returns "2 agents of 2 slots, 1 agent of 8 slots", the largest first; "no agents" when there are none."""
    counts = Counter(slots_of_agents)
    parts = [f"{count} {_plural('agent', count)} of {size} {_plural('slot', size)}" for size, count in counts.items()]
    order = sorted(zip(counts, parts, strict=True), reverse=True)
    return ", ".join(part for _, part in order) or "no agents"


def describe_sizes(slots: int, sizes: Sequence[int]) -> str:
    """Names the sizes that fit instead: all of them when they are few, else the nearest below and above."""
    ranges = _ranges(sizes)
    if len(ranges) <= _MAX_NAMED:
        return f"sizes that fit are {', '.join(ranges)}" if ranges else "no size fits"
    nearest = [
        max((size for size in sizes if size < slots), default=0),
        min((s for s in sizes if s > slots), default=0),
    ]
    return f"the nearest sizes that fit are {' and '.join(str(size) for size in nearest if size)}"


def never_fits(
    slots: int, pool: str, slots_of_agents: Sequence[int], is_single_agent: bool, is_heterogeneous: bool = False
) -> str | None:
    """Returns the sentence for a gang that the pool can never hold; None when it can. A pool without agents refuses
    nothing, because agents may be about to join."""
    if not slots_of_agents or can_hold(slots, slots_of_agents, is_single_agent, is_heterogeneous):
        return None
    sizes = fitting_sizes(slots_of_agents, is_single_agent, is_heterogeneous)
    limit = " on a single agent of" if is_single_agent else ""
    pool_text = f"pool {pool!r} ({describe_agents(slots_of_agents)})"
    return f"{slots} can never fit{limit} {pool_text}: {describe_sizes(slots, sizes)}"


def _ranges(sizes: Sequence[int]) -> list[str]:
    """Returns [1, 2, 3, 4, 8] as "1 to 4", "8"; two neighbours stay two numbers."""
    texts: list[str] = []
    start = 0
    for position in range(1, len(sizes) + 1):
        if position < len(sizes) and sizes[position] == sizes[position - 1] + 1:
            continue
        run = sizes[start:position]
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(size) for size in run]
        start = position
    return texts


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
