"""PURE: limits for the numbers that a trial, its runner or an agent reports.

A report is data of a user's program, and other users' pages show it. A time far in the future, a negative count or a
value that is no number must not spoil them, so the receiver replaces it. Metrics of a trial are not limited here,
because NaN and infinity are legitimate values of a metric.

Owns the limits on the size of an experiment's code as well: the client packs by them; gateways and trial runners refuse
an archive beyond them.
"""

from __future__ import annotations

import math

# How far a clock may be ahead. The receiver replaces a time beyond that with its own.
MOST_SECONDS_AHEAD = 86400.0
# The largest whole number that JSON's readers represent exactly.
MOST_COUNT = 2**53 - 1
# Limit of durations and rates, small enough that a product with a count stays finite.
MOST_AMOUNT = 1e15


def plausible_time(at: float, now: float) -> float:
    """Returns Unix seconds, or `now` in place of a time that is no number, negative or more than a day ahead. 0 means
    never and stays."""
    return at if 0.0 <= at <= now + MOST_SECONDS_AHEAD else now


def plausible_count(number: int) -> int:
    """Returns the count, or 0 for unknown in place of a count that is negative or too large for JSON."""
    return number if 0 <= number <= MOST_COUNT else 0


def plausible_amount(value: float) -> float:
    """Returns a duration or a rate, or 0 for unknown in place of a value that is no number, negative or above 1e15."""
    return value if math.isfinite(value) and 0.0 <= value <= MOST_AMOUNT else 0.0


MB = 1 << 20
MAX_MB = 95
MAX_FILES = 20_000
# Limit of a path inside the code folder. It is below the kernel's 4096, because the trial's own folder precedes the
# path.
MAX_PATH_BYTES = 1024
# Limit of one part of a path, that of Linux file systems.
MAX_PART_BYTES = 255
