"""PURE: which versions of etcd may keep a cluster's state.

Owns the verdict on an etcd version. Source of the numbers: etcd issue 14370 (a lone member acknowledges a write before
it is on disk; fixed in 3.4.21 and 3.5.5), etcd issue 13766 (3.5.0 to 3.5.2 can lose committed entries when killed under
load), the announcement of the 3.4.21 and 3.5.5 inconsistency (fixed in 3.4.22 and 3.5.6), and etcd pulls 15237 and
17566 (requested progress notifications are right from 3.5.16 on).
"""

from __future__ import annotations

import re

Version = tuple[int, int, int]
# Major and minor version. etcd opens the data of its own series and of the one before it.
Series = tuple[int, int]

# The version of a program that does not tell it.
UNKNOWN: Version = (0, 0, 0)

_LOSES_ENTRIES: tuple[Version, Version] = ((3, 5, 0), (3, 5, 2))
_WRITES_FIRST_3_4: Version = (3, 4, 21)
_WRITES_FIRST_3_5: Version = (3, 5, 5)
_SAFE_3_4: Version = (3, 4, 22)
_SAFE_3_5: Version = (3, 5, 6)
_RIGHT_PROGRESS: Version = (3, 5, 16)


def parse_version(text: str) -> Version:
    """Parses "3.5.30" and "3.6.0-rc.1" alike; anything unreadable is UNKNOWN."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else UNKNOWN


def render_version(version: tuple[int, ...]) -> str:
    """Returns a version or a series as text: "3.5.1", "3.5"."""
    return ".".join(map(str, version))


def may_lose_entries(version: Version) -> bool:
    """Returns whether this version must not run with more than one member."""
    return _LOSES_ENTRIES[0] <= version <= _LOSES_ENTRIES[1]


def is_safe(version: Version) -> bool:
    """Returns whether no loss and no corruption is known for this version."""
    return version >= _SAFE_3_5 or _SAFE_3_4 <= version < (3, 5, 0)


def describe_weakness(version: Version) -> str:
    """Returns what can happen to the state of a single member, as "can ..."; empty for a safe or an unknown version."""
    if version == UNKNOWN or is_safe(version):
        return ""
    if version < _WRITES_FIRST_3_4 or (3, 5, 0) <= version < _WRITES_FIRST_3_5:
        return "can lose acknowledged changes when it is killed or the power fails"
    return "can hold inconsistent state after a crash"


def answers_progress_requests(version: Version) -> bool:
    """Returns whether a requested progress notification never overtakes events."""
    return version >= _RIGHT_PROGRESS
