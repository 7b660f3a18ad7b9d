"""Writes tests/durations.json, the seconds of each file of tests, from what a run of all tests has printed.

`make test ARGS="--durations=0 --durations-min=0.1" >LOG`, then `python3 scripts/write_durations.py LOG`. The file says
in which order workers get the files, so it need not be exact; write it anew when the longest files have changed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINE = re.compile(r"([\d.]+)s (?:call|setup|teardown) +(tests/[^:]+\.py)::")


def seconds_by_file(lines: Iterable[str]) -> dict[str, float]:
    """Returns the sum of what pytest's `--durations` has listed of each file that exists; the longest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if match := _LINE.match(line):
            seconds[match[2]] += float(match[1])
    return {file: round(total, 1) for file, total in _longest_first(seconds) if (ROOT / file).exists()}


def _longest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda entry: -entry[1])


def main() -> None:
    with Path(sys.argv[1]).open(errors="replace") as log:
        found = seconds_by_file(log)
    others = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    # What is listed for a file nowhere has taken no time worth a line.
    durations = found | {file: 0.0 for file in others if file not in found}
    (ROOT / "tests" / "durations.json").write_text(json.dumps(durations, indent=1) + "\n")


if __name__ == "__main__":
    main()
