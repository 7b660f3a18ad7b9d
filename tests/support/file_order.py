"""The order in which workers get files of tests: the longest first, so that none is alone with a long one at the end.

tests/durations.json has the seconds of each file, from an earlier run; scripts/write_durations.py writes it. A file is
run by one worker, which makes the fixtures of the file once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from tests.support.source import ROOT

# A new file. It comes before the many short ones, and after those that would keep a worker for long.
UNKNOWN_SECONDS = 10.0


def place_of(node_id: str, seconds: Mapping[str, float]) -> tuple[float, str]:
    """Returns the key by which items are sorted. Those of a file keep their order, and stay together."""
    file = node_id.partition("::")[0]
    return -seconds.get(file, UNKNOWN_SECONDS), file


@cache
def known_seconds() -> dict[str, float]:
    seconds: dict[str, float] = json.loads((ROOT / "tests" / "durations.json").read_text())
    return seconds
