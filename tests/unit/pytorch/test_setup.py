"""How long collectives may wait: longer than the watchdog, which names the rank that hangs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline.cluster_info import ClusterInfo, TrialInfo
from gangline.pytorch.setup import timeout_of


@pytest.mark.parametrize(
    ("watch", "seconds"),
    [
        ({}, 28800),
        ({"seconds": 5, "start_seconds": 10, "rest_seconds": 20}, 7200),
        ({"start_seconds": 20000}, 40000),
        ({"rest_seconds": 9000}, 18000),
        ({"seconds": 16000}, 32000),
        ({"enabled": False}, None),
    ],
)
def test_a_collective_waits_longer_than_every_limit_of_the_watchdog(watch: dict[str, Any], seconds: int | None) -> None:
    trial = TrialInfo("7.1", 7, 1, {}, {"hang_detection": watch})
    cluster = ClusterInfo("c1", "7.1.2", 2, "a1", 0, 1, [], "/storage", "", trial)
    assert timeout_of(cluster) == (None if seconds is None else timedelta(seconds=seconds))


def test_off_the_cluster_the_backends_own_timeout_holds() -> None:
    assert timeout_of(None) is None
