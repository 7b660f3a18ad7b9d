"""PURE: the lines of workers in the output of the process that has started them.

`wrap_rank` marks each line of a worker with its rank. Here the mark becomes the rank of the line in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

_MARK = re.compile(r"^\[rank=(\d{1,6})\] ")


def split_by_worker(lines: Sequence[str], rank: int) -> Iterator[tuple[int, list[str]]]:
    """Yields consecutive lines of one worker, without their marks. rank: of the lines without a mark."""
    read = [(int(match[1]), line[match.end() :]) if (match := _MARK.match(line)) else (rank, line) for line in lines]
    for worker, part in groupby(read, key=lambda pair: pair[0]):
        yield worker, [line for _, line in part]
