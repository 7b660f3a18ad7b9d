"""PURE: completes a message "there is no ..." with the known names and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from services.scheduler.placement.request.order import natural_key

_MAX_NAMED = 12
# Least similarity of a suggestion. Low, because one changed character is a large share of a short name.
_LEAST_ALIKE = 0.5


def describe_known(what: str, wanted: str, existing: Iterable[str]) -> str:
    """ "did you mean 'a1'? the agents are a1, a2"; what: in the singular."""
    names = sorted(existing, key=natural_key)
    if not names:
        return f"there are no {what}s yet"
    near = get_close_matches(wanted, names, 1, _LEAST_ALIKE)
    hint = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    verb = f"only {what} is" if len(names) == 1 else f"{what}s are"
    return f"{hint}the {verb} {', '.join(names[:_MAX_NAMED])}{more}"
