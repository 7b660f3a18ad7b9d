"""A small configuration is read quickly whatever it says: services read it on their event loops."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from gangline.config import check_config
from gangline.config.bound import SMALL_TEXT
from gangline.errors import GanglineError
from tests.support.work import calls_of

BASE: dict[str, Any] = {"name": "small", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}}
GRID = {"name": "grid", "metric": "loss"}
INT = {"type": "int", "minval": -(2**62), "maxval": 2**62, "count": 2**62}

TEXTS = {
    "nested": "[" * SMALL_TEXT,
    "deep mapping": json.dumps({**BASE, "data": json.loads('{"a":' * 500 + "1" + "}" * 500)}),
    "many values": json.dumps({**BASE, "data": {"a": [1] * 1200}}),
    "large counts": json.dumps({**BASE, "searcher": GRID, "hyperparameters": {f"h{n}": INT for n in range(30)}}),
    "large range": json.dumps({**BASE, "hyperparameters": {"global_batch_size": INT}}),
    "long number": json.dumps(BASE)[:-1] + ', "max_restarts": ' + "9" * 3800 + "}",
    "pattern": json.dumps({**BASE, "log_policies": [{"pattern": "((a{1,30}){1,30}){1,30}" * 40}]}),
    "alternatives": json.dumps({**BASE, "log_policies": [{"pattern": "(" + "|".join(["a*b*"] * 600) + ")*"}]}),
    "wrong keys": json.dumps({**BASE, **{f"searchr{n}": 1 for n in range(200)}}),
    "quotes": json.dumps({**BASE, "entrypoint": "'" * 3800}),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_no_small_configuration_takes_long_to_read(text: str) -> None:
    assert len(text) <= SMALL_TEXT
    with suppress(GanglineError):
        # What loads a library takes longer once.
        check_config(text)
    assert calls_of(lambda: check_config(text)) < 100_000
