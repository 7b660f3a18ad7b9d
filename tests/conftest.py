"""Sorts the tests over pytest-xdist's workers, and says how long hypothesis may take.

Tests that start real processes measure time and use both cores: they run one after another on one worker, while the
other workers run the rest. Without -n this changes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast an example runs says how busy the machine is, and nothing of the code. The build machine tries the same
# examples each time, so that a change breaks it and not chance; everywhere else new ones are tried.
settings.register_profile(
    "gangline", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("gangline")

FOLDERS_OF_REAL_PROCESSES = {"e2e", "faults", "gpu", "integration"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        if item.path.relative_to(tests).parts[0] in FOLDERS_OF_REAL_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("real_processes"))
