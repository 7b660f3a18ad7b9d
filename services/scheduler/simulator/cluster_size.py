"""PURE: the agents of a virtual cluster, from the text of a flag."""

from __future__ import annotations

import re

from gangline.errors import invalid

SLOTS_OF_AGENT = 8
# Bounds the memory that a mistyped flag can take.
MAX_AGENTS = 100_000
_TERM = re.compile(r"(\d+)x(\d+)")


def parse_agents(text: str) -> list[int]:
    """Returns the slots of each agent, from "64x8" or "4x8+2x4". Raises GanglineError `simulation.agents`."""
    sizes: list[int] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term.strip())
        count, slots = (int(match[1]), int(match[2])) if match else (0, 0)
        if not count or not slots or len(sizes) + count > MAX_AGENTS:
            raise invalid(
                "simulation.agents", f"--agents {text!r}: must be agents x slots, such as 64x8 or 4x8+2x4, not {term!r}"
            )
        sizes += [slots] * count
    return sizes


def agents_of_slots(slots: int) -> list[int]:
    """Returns agents of 8 slots with this sum, the last one smaller when 8 does not divide it. Raises GanglineError
    `simulation.agents`."""
    if not 1 <= slots <= MAX_AGENTS * SLOTS_OF_AGENT:
        raise invalid("simulation.agents", f"--slots: must be at least 1 and at most {MAX_AGENTS * SLOTS_OF_AGENT}")
    num_full, last_slots = divmod(slots, SLOTS_OF_AGENT)
    return [SLOTS_OF_AGENT] * num_full + ([last_slots] if last_slots else [])
