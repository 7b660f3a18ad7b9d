"""The gateway's settings, as far as they are more than types and defaults."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.gateway.program import GatewaySettings


def test_storage_is_no_chain() -> None:
    with pytest.raises(ValidationError, match="chains file systems with '::'"):
        GatewaySettings(storage_url="simplecache::s3://bucket")
