"""PURE: the settled configurations of experiments.

They are cached, because every transition of an experiment asks for its configuration again. No other module of the
scheduler reads `config_json`.
"""

from __future__ import annotations

from functools import lru_cache

from gangline.config.experiment import ExperimentConfig
from gangline.domain.settled.reading import settle, settle_values
from gangline.domain.settled.record import NOTHING, Settled

# Configurations that are being settled, by their text. Only `settled_of_parsed` adds one, and it removes it again.
_parsed: dict[str, ExperimentConfig] = {}


def settled_of_parsed(config_json: str, config: ExperimentConfig) -> Settled:
    """Returns the same as `settled_of`, without parsing the text again. config: the parsed text."""
    _parsed[config_json] = config
    try:
        return settled_of(config_json)
    finally:
        _parsed.pop(config_json, None)


# More experiments than ever wait or run at once. Each cycle asks for all of them, so a cache that is one entry too
# small would parse every configuration anew.
@lru_cache(maxsize=1 << 16)
def settled_of(config_json: str) -> Settled:
    """Returns a stored configuration without its `data`. These are the trial's own and may be most of the text, and
    the cache would keep them as objects, which take eight times the memory of the text."""
    config = _parsed.get(config_json)
    settled = settle(config_json) if config is None else settle_values(config)
    return settled._replace(data=NOTHING)
