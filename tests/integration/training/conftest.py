"""What several tests of trainings share: the reference of pipelines, and programs that start warm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import warm_python
from tests.support.pipeline_trial import Alone
from tests.support.warm_program import WarmPair, folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a python3 and a torchrun that start warm."""
    return warm_python.install_commands(tmp_path_factory.mktemp("warm"), WarmPair(folder()).ranks())
