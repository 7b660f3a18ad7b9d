"""docs/configuration.md explains every key that the configuration has, and promises nothing that has no effect."""

from __future__ import annotations

import pytest

from gangline.config import ExperimentConfig, parse_config
from gangline.config.effect import NO_EFFECT
from gangline.config.optimization import Optimizations
from gangline.config.parallelism import Parallelism
from gangline.config.resource import Resources
from gangline.config.searcher import Searcher
from gangline.config.section import Section
from tests.support.source import ROOT

TEXT = (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("section", [ExperimentConfig, Searcher, Resources, Optimizations, Parallelism])
def test_every_key_is_explained(section: type[Section]) -> None:
    missing = [key for key in section.model_fields if f"`{key}" not in TEXT and f"{key}`" not in TEXT]
    assert missing == []


def test_what_has_no_effect_says_so() -> None:
    """Each such key stands in a line of the tables that says "no effect", by its last name or its section's."""
    lines = [line for line in TEXT.splitlines() if "no effect" in line]
    promised = [
        path
        for path in NO_EFFECT
        if not any(f"`{name}`" in line for line in lines for name in (path.split(".")[0], path.split(".")[-1]))
    ]
    assert promised == []


def test_the_example_is_valid() -> None:
    config, warnings = parse_config(TEXT.split("```yaml\n")[1].split("```")[0])
    assert config.resources.slots_per_trial == 4
    assert warnings == []
