"""PURE: how a scheduler that does not lead sends its callers to the one that does: a sentence for people and programs.

The scheduler words it; agents and trial runners find the address in it.
"""

from __future__ import annotations

import re

_LEADER = re.compile(r"leader is (?:at )?((?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d+)")


def word_referral(address: str) -> str:
    """address: "host:port" of the leader; empty while nobody leads."""
    return f"the leader is at {address}" if address else "no scheduler leads right now; try again"


def find_leader(message: str) -> str:
    """The address that the message names; empty when it names none."""
    found = _LEADER.search(message)
    return found.group(1) if found else ""
