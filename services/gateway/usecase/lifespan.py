"""PURE: reads the lifespan of a token as Determined's API writes durations, in hours, minutes and seconds."""

from __future__ import annotations

import re

from gangline.errors import invalid

_FORM = re.compile(r"(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12})s)?")


def parse_lifespan(text: str) -> float:
    """Returns seconds: 0 for an empty text, which stands for the default, and -1 for "-1", which stands for no end.
    Raises GanglineError `token.lifespan`."""
    if text == "-1":
        return -1.0
    parts = _FORM.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in parts.groups()) if parts is not None else (0, 0, 0)
    total = float(hours * 3600 + minutes * 60 + seconds)
    if text and not total:
        raise invalid("token.lifespan", f'{text[:40]!r} is no lifespan; write it as "720h", or "-1" for no end')
    return total
