"""A rank's place in the form of Determined's scripts, with the private names that some of them read."""

from __future__ import annotations

import pytest

from gangline.alias.cluster_info import get_cluster_info
from gangline.cluster_info import ENVIRONMENT_KEY, CheckpointInfo, ClusterInfo, TrialInfo


@pytest.mark.parametrize("latest", [None, CheckpointInfo("c1", "file:///c1", 40)])
def test_private_names_of_a_trial(monkeypatch: pytest.MonkeyPatch, latest: CheckpointInfo | None) -> None:
    trial = TrialInfo("7.1", 7, 3, {"lr": 0.1}, {"name": "mine"})
    own = ClusterInfo("c", "7.1.2", 2, "a1", 0, 1, ["a1/4"], "", "/code", trial, latest)
    monkeypatch.setenv(ENVIRONMENT_KEY, own.to_json())
    info = get_cluster_info()
    assert info is not None
    assert (info.trial.trial_id, info.trial._config, info.trial._unique_port_offset) == (700001, {"name": "mine"}, 0)
    assert info.trial._steps_completed == (40 if latest else 0)
    assert info.latest_checkpoint == (latest.id if latest else None)
