"""Lifespans of tokens as Determined's API writes them."""

from __future__ import annotations

import pytest

from gangline.errors import GanglineError
from services.gateway.usecase.lifespan import parse_lifespan


@pytest.mark.parametrize(("text", "seconds"), [("", 0), ("-1", -1), ("720h", 2592000), ("1h30m", 5400), ("5s", 5)])
def test_a_lifespan_is_read(text: str, seconds: float) -> None:
    assert parse_lifespan(text) == seconds


@pytest.mark.parametrize("text", ["0h", "h", "30", "-2h", "1d", "1h x", "9" * 20 + "h"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(GanglineError, match="is no lifespan"):
        parse_lifespan(text)
