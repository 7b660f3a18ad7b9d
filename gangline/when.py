"""Reads the times that users type: a date, a time, or an age such as 7d.

A time without a zone is local unless the caller names a zone, so the host takes part in the result.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from gangline.errors import invalid

_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", re.ASCII)


def parse_when(text: str, now: float, name: str, zone: tzinfo | None = None) -> float:
    """Returns Unix seconds. name: of the option, for the message. zone: of times that name none; None for local time.

    Raises GanglineError `usage.when`.
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(0.0, now - float(age[1]) * _SECONDS_BY_UNIT[age[2]])
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise invalid(
            "usage.when",
            f"{name} {text!r} is no time; give a date or a time such as 2026-01-31 or 2026-01-31T14:00, or an age such "
            "as 7d, 12h or 30m",
        ) from None


def check_period(since: float, until: float, now: float) -> None:
    """Raises GanglineError `usage.period` for a period without any time in it."""
    # Written so that NaN is refused as well.
    if not since < now:
        raise invalid("usage.period", "the period begins in the future; give --since an earlier time")
    if not since < until:
        raise invalid("usage.period", "the period ends before it begins; give --until a later time than --since")
