"""What several tests of pipelines share."""

from __future__ import annotations

import pytest

from tests.support.pipeline_trial import Alone


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))
